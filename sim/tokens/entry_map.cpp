#include "sim/tokens/entry_map.hpp"

#include "sim/simd/panel_gemm.hpp"
#include "sim/tokens/column_totals.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <type_traits>

namespace kvreplay {
namespace {

/// In place of a RowFormula: the logit itself.
struct Logit {
  static constexpr bool kDifference = false;
};

constexpr Index kTokensAtOnce = 72;

/// One row against the tokens of a tile.
template <class T>
struct RowTile {
  EntryRow<T> row;
  const T* outputs;  ///< [d_v][W] from the row on, centred
  const T* z;        ///< [tokens][W] from the row on: raw logits
  const T* v_dot_o;  ///< [tokens][W] from the row on
  Index first;       ///< position of the tile's first token
  Index begin, end;  ///< tokens of the tile that the row sees
};

template <class T>
EntryRow<T> row_at(const T* constants, Index r) {
  const auto constant = [&](RowConstant which) { return constants[which * kPanelWidth<T> + r]; };
  return {constant(kLse),           constant(kRescale),        constant(kZeroLogit),
          constant(kZeroWeightSum), constant(kZeroLogitOutSq), constant(kOutCentredSq),
          constant(kCentreDotOut)};
}

}  // namespace

template <class T>
std::size_t EntryRows<T>::bytes() const {
  return sizeof(*this) + (queries.size() + outputs.size() + constants.size()) * sizeof(T) +
         largest.size() * sizeof(LargestScores);
}

template <class T>
struct EntryMap<T>::Impl {
  static constexpr Index W = kPanelWidth<T>;
  std::uint64_t id = 0;
  std::shared_ptr<const HeadGroup<T>> group;
  PreparedValues<T> values;

  TileInput<T> input(const EntryRows<T>& of) const {
    TileInput<T> in = tile_input(*group, values, of.rows);
    in.row_step = of.step;
    in.n_rows = of.count();
    in.q_panels = of.queries.data();
    return in;
  }
  void pass_one(EntryRows<T>& of, Index first, Index n, Workers& workers) const;
  template <class Formula>
  void row_entries(const RowTile<T>& tile, T* out) const;
  template <class Formula>
  void panel_entries(const TileInput<T>& in, const EntryRows<T>& of, Index panel, RowRange numbers,
                     Index begin, Index end, T* out) const;
};

template <class T>
EntryMap<T>::EntryMap(std::shared_ptr<const HeadGroup<T>> group, Workers& workers)
    : impl_(std::make_unique<Impl>()) {
  static std::atomic<std::uint64_t> maps{0};
  impl_->id = maps++;
  impl_->values = prepare_values(*group, workers);
  impl_->group = std::move(group);
}

template <class T>
EntryMap<T>::~EntryMap() = default;
template <class T>
EntryMap<T>::EntryMap(EntryMap&&) noexcept = default;
template <class T>
EntryMap<T>& EntryMap<T>::operator=(EntryMap&&) noexcept = default;

template <class T>
const HeadGroup<T>& EntryMap<T>::group() const {
  return *impl_->group;
}

template <class T>
std::uint64_t EntryMap<T>::id() const {
  return impl_->id;
}

/// Pass one for n panels of rows that share each tile's keys.
template <class T>
void EntryMap<T>::Impl::pass_one(EntryRows<T>& of, Index first, Index n, Workers& workers) const {
  const TileInput<T> in = input(of);
  std::vector<T> scalars(n * 4 * W);
  std::array<SoftmaxPanel<T>, kPanelsPerBlock> states{};
  for (Index b = 0; b < n; ++b) {
    pack_query_panel(*group, in, of.g, first + b, of.queries.data() + (first + b) * in.d * W);
    T* s = scalars.data() + b * 4 * W;
    states[b] = {s, s + W, s + 2 * W, s + 3 * W, of.outputs.data() + (first + b) * in.d_v * W};
    start_state(*group, values, of.g, in, true, states[b]);
  }
  // Tiles start at multiples of their size whatever the rows, so that a row's sums are the same in any panel.
  constexpr Index kTokensPerCheck = 16 * kTokensPassOne;
  const Index end = in.end_visible(in.panel_last(first + n - 1));
  for (Index begin = 0; begin < end; begin += kTokensPerCheck) {
    if (workers.stopping()) throw Interrupted();
    tiles_simd<T>().softmax_tiles(in, first, n, begin, std::min(begin + kTokensPerCheck, end), states.data());
  }
  for (Index b = 0; b < n; ++b)
    finish_panel(*group, values, of.g, in, first + b, states[b],
                 of.constants.data() + (first + b) * kRowConstants * W, of.largest.data() + (first + b) * W);
}

template <class T>
EntryRows<T> EntryMap<T>::rows(Index g, RowRange rows, Workers& workers, Index step) const {
  constexpr Index W = kPanelWidth<T>;
  const HeadGroup<T>& group = *impl_->group;
  const bool there =
      rows.count() == 0 || (rows.begin >= group.first_query() && rows.end <= group.T_all() && step > 0);
  if (!there || g < 0 || g >= group.G()) throw std::invalid_argument("EntryMap::rows: no such rows");
  EntryRows<T> of;
  of.g = g;
  of.rows = rows;
  of.step = step;
  of.largest.resize(div_up(rows.count(), step));
  const Index panels = div_up(of.count(), W);
  of.queries.resize(panels * group.d() * W);
  of.outputs.resize(panels * group.d_v() * W);
  of.constants.resize(panels * kRowConstants * W);
  workers.parallel_for(div_up(panels, kPanelsPerBlock), [&](Index block) {
    const Index first = block * kPanelsPerBlock;
    impl_->pass_one(of, first, std::min(kPanelsPerBlock, panels - first), workers);
  });
  return of;
}

/// out[t] for the tokens [tile.begin, tile.end) of the tile.
template <class T>
template <class Formula>
void EntryMap<T>::Impl::row_entries(const RowTile<T>& tile, T* out) const {
  const EntryRow<T>& row = tile.row;
  const Index d_v = group->d_v();
  const T cap = static_cast<T>(group->rule.softcap.value_or(0));
  for (Index t = tile.begin; t < tile.end; ++t) {
    const Index p = tile.first + t;
    const EntryLogit<T> logit = entry_logit(tile.z[t * W], cap);
    if constexpr (std::is_same_v<Formula, Logit>) {
      out[t] = logit.z;
    } else {
      const T a = std::exp(logit.z - row.lse);
      RowEntry<T> entry{a, logit.z, logit.taylor, values.value_sq[p], {}};
      const T* value = values.centred.data() + p * d_v;
      const T* centre = values.centre.data();
      if constexpr (Formula::kDifference) {
        const EntryToken<T> token{values.value_sq[p], values.value_centred_sq[p], values.centre_dot_value[p]};
        entry.to = entry_distances(row, token, tile.v_dot_o[t * W]);
        if (distances_cancelled(row, token, entry.to.u))
          entry.to = entry_differences(value, tile.outputs, W, centre, d_v);
      }
      if constexpr (Formula::kCancels) {
        const EntrySquare<T> square = Formula::square(row, entry);
        out[t] = weighted_square(Formula::weight(row, entry),
                                 square.cancelled() ? entry_vector_sq(Formula::vector(row, entry), value,
                                                                      tile.outputs, W, centre, d_v)
                                                    : square.sum);
      } else {
        out[t] = Formula::term(row, entry);
      }
    }
  }
}

/// The rows `numbers` of `of`, all of one panel. out [numbers][end - begin], full of NaN.
template <class T>
template <class Formula>
void EntryMap<T>::Impl::panel_entries(const TileInput<T>& in, const EntryRows<T>& of, Index panel,
                                      RowRange numbers, Index begin, Index end, T* out) const {
  T z[kTokensAtOnce * W];
  T v_dot_o[kTokensAtOnce * W];
  const T* constants = of.constants.data() + panel * kRowConstants * W;
  const T* outputs = of.outputs.data() + panel * in.d_v * W;
  const Index first = std::max(begin, in.first_visible(of.position(numbers.begin)));
  const Index last = std::min(end, in.end_visible(of.position(numbers.end - 1)));
  for (Index tile = first; tile < last; tile += kTokensAtOnce) {
    const Index tokens = std::min(kTokensAtOnce, last - tile);
    panel_gemm(tokens, in.d, in.k + tile * in.d, in.d, in.q_panels + panel * in.d * W, z);
    if constexpr (Formula::kDifference)
      panel_gemm(tokens, in.d_v, in.v_centred + tile * in.d_v, in.d_v, outputs, v_dot_o);
    for (Index n = numbers.begin; n < numbers.end; ++n) {
      const Index r = n - panel * W, i = of.position(n);
      const Index from = std::clamp<Index>(in.first_visible(i) - tile, 0, tokens);
      const Index to = std::clamp<Index>(in.end_visible(i) - tile, from, tokens);
      T* row_out = out + (n - numbers.begin) * (end - begin) + (tile - begin);
      row_entries<Formula>({row_at(constants, r), outputs + r, z + r, v_dot_o + r, tile, from, to}, row_out);
      if constexpr (!std::is_same_v<Formula, Logit>) {
        const LargestScores& largest = of.largest[n];
        if (largest.at < tile || largest.at >= tile + tokens) continue;
        row_out[largest.at - tile] = static_cast<T>(Formula::kScore == RowScore::value
                                                        ? largest[RowScore::attention_sq] *
                                                              static_cast<double>(values.value_sq[largest.at])
                                                        : largest[Formula::kScore]);
      }
    }
  }
}

template <class T>
void EntryMap<T>::entries(const EntryRows<T>& of, EntryTerm entry, RowRange take, Index begin, Index end,
                          T* out) const {
  constexpr Index W = kPanelWidth<T>;
  if (begin < 0 || end > impl_->group->T_all())
    throw std::invalid_argument("EntryMap::entries: no such tokens");
  const TileInput<T> in = impl_->input(of);
  const auto number_of = [&](Index position) {
    const Index distance = std::max<Index>(position - of.rows.begin, 0);
    return std::min((distance + of.step - 1) / of.step, of.count());
  };
  const RowRange numbers{number_of(take.begin), number_of(take.end)};
  const Index width = std::max<Index>(end - begin, 0);
  std::fill_n(out, numbers.count() * width, std::numeric_limits<T>::quiet_NaN());
  for (Index n = numbers.begin; n < numbers.end;) {
    const Index panel = n / W, next = std::min((panel + 1) * W, numbers.end);
    T* rows_out = out + (n - numbers.begin) * width;
    const auto take_as = [&]<class Formula>(Formula) {
      impl_->template panel_entries<Formula>(in, of, panel, {n, next}, begin, end, rows_out);
    };
    if (entry == EntryTerm::logit)
      take_as(Logit());
    else
      with_formula(kTokenMetrics[*kEntries[entry].metric].decoding.score, take_as);
    n = next;
  }
}

template struct EntryRows<float>;
template struct EntryRows<double>;
template class EntryMap<float>;
template class EntryMap<double>;

}  // namespace kvreplay
