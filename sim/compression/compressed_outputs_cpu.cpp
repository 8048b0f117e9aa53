#include "sim/compression/compressed_outputs.hpp"
#include "sim/eviction/kept_tiles.hpp"
#include "sim/eviction/vanishing_outputs.hpp"
#include "sim/overflow.hpp"
#include "sim/tokens/column_totals.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay {
namespace {

/// Columns whose keys hold the same channels, gathered one behind the other.
template <class T>
struct Part {
  std::vector<Index> channels;   ///< ascending
  std::vector<Index> positions;  ///< [n], ascending
  Matrix<T> keys;                ///< [n, channels]
  Vector<T> bias;                ///< [n], or empty
};

/// What a cache attends over: the columns of the tokens that hold all channels, and of those that were
/// pruned.
template <class T>
struct Columns {
  std::array<Part<T>, 2> parts;
  std::vector<Index> positions;    ///< [n], of both parts, ascending
  std::vector<std::uint8_t> part;  ///< [n], which one has it
  std::vector<const T*> values;    ///< [n] of [d_v]
};

std::vector<Index> channels_left(const ChannelSet& pruned) {
  std::vector<Index> left;
  for (std::size_t c = 0; c < pruned.size(); ++c)
    if (pruned[c] == 0) left.push_back(static_cast<Index>(c));
  return left;
}

/// What is to be kept of the prompt's k and v.
template <class T>
struct Held {
  const HeadMatrix<T>&k, &v;
  const Vector<T>& bias;  // [l], or empty
  const KeptSet& kept;
  const ChannelSet& pruned;
  const KeptSet& prunable;
};

/// Whether a cache holds the whole prompt as it was.
template <class T>
bool holds_the_same(const HeadGroup<T>& group, const Held<T>& held) {
  const Index l = group.l;
  if (count(held.kept) < l || held.v.topRows(l) != group.v.topRows(l)) return false;
  if (!held.bias.isZero(0)) return false;
  for (Index p = 0; p < l; ++p)
    for (Index c = 0; c < group.d(); ++c) {
      const bool lost = !held.pruned.empty() && held.pruned[c] != 0 && held.prunable[p] != 0;
      if ((lost ? T{0} : held.k(p, c)) != group.k(p, c)) return false;
    }
  return true;
}

/// The columns that `held` makes of the prompt, and the group's own decoded ones.
template <class T>
Columns<T> gather(const HeadGroup<T>& group, const Held<T>& held, Workers& workers) {
  Columns<T> columns;
  const Index l = group.l;
  columns.parts[0].channels = channels_left(ChannelSet(group.d(), 0));
  columns.parts[1].channels = channels_left(held.pruned);
  for (Index p = 0; p < group.T_all(); ++p) {
    if (p < l && held.kept[p] == 0) continue;
    const bool loses = p < l && !held.pruned.empty() && held.prunable[p] != 0;
    columns.positions.push_back(p);
    columns.part.push_back(loses ? 1 : 0);
    columns.values.push_back((p < l ? held.v : group.v).data() + p * group.d_v());
    columns.parts[columns.part.back()].positions.push_back(p);
  }
  for (Part<T>& part : columns.parts) {
    const auto n = std::ssize(part.positions);
    part.keys.resize(n, std::ssize(part.channels));
    if (held.bias.size() > 0)
      part.bias = Vector<T>::NullaryExpr(
          n, [&](Index row) { return part.positions[row] < l ? held.bias[part.positions[row]] : T{0}; });
    constexpr Index kChunk = 256;
    workers.parallel_for(div_up(n, kChunk), [&](Index chunk) {
      for (Index row = chunk * kChunk; row < std::min((chunk + 1) * kChunk, n); ++row) {
        const Index p = part.positions[row];
        const T* key = (p < l ? held.k : group.k).data() + p * group.d();
        T* out = part.keys.data() + row * part.keys.cols();
        for (std::size_t c = 0; c < part.channels.size(); ++c) out[c] = key[part.channels[c]];
      }
    });
  }
  return columns;
}

/// Throws where a row sees a logit beyond T: such logits pass for hidden ones, or for all there is.
template <class T>
void require_finite_logits(const HeadGroup<T>& group, const TileInput<T>& in, Index g, Index panel,
                           const Index* positions, Index n, const T* z) {
  constexpr Index W = kPanelWidth<T>;
  for (Index i = in.panel_first(panel); i <= in.panel_last(panel); ++i)
    for (Index t = 0; t < n; ++t)
      if (positions[t] >= in.first_visible(i) && positions[t] < in.end_visible(i) &&
          !std::isfinite(z[t * W + i - in.panel_first(panel)]))
        report_overflow(group, g, "position " + std::to_string(i));
}

/// One panel of some query heads over the columns, a tile of them at a time.
template <class T>
class PanelAttention {
 public:
  static constexpr Index W = kPanelWidth<T>;

  PanelAttention(const HeadGroup<T>& group, const TileInput<T>& in, const Columns<T>& columns,
                 const Vector<T>& centre, Index panel)
      : group_(group), in_(in), columns_(columns), centre_(centre), panel_(panel) {}

  /// Of the query heads from `first_head` on.
  void attend(Index first_head, std::vector<AttendedOutput<T>>& heads) {
    std::vector<AttendedPanel<T>> panels;
    std::vector<std::array<std::vector<T>, 2>> queries;
    for (std::size_t h = 0; h < heads.size(); ++h) {
      const Index g = first_head + static_cast<Index>(h);
      panels.emplace_back(sink_logit(group_, g), in_.d_v, heads[h]);
      queries.push_back(queries_of(g));
    }
    const Index begin = first_at(columns_.positions, in_.first_visible(in_.panel_first(panel_)));
    const Index end = first_at(columns_.positions, in_.end_visible(in_.panel_last(panel_)));
    for (Index first = begin; first < end; first += kTokensPassOne) {
      take_tile(first, std::min(kTokensPassOne, end - first));
      for (std::size_t h = 0; h < heads.size(); ++h) {
        find_logits(first_head + static_cast<Index>(h), queries[h]);
        kept_tiles_simd<T>().attend_tile(z_.data(), row_.data(), tokens_, values_.data(), in_.d_v, panels[h]);
      }
    }
    for (AttendedPanel<T>& panel : panels) finish_attending(panel);
  }

 private:
  /// Of a part within the tile: its columns [from, from + n), whose logits have the rows from `row` on.
  struct Range {
    Index from, n, row;
  };

  static Index first_at(const std::vector<Index>& positions, Index position) {
    return std::lower_bound(positions.begin(), positions.end(), position) - positions.begin();
  }

  /// The panel's queries in the channels that each part holds, [channels][W].
  std::array<std::vector<T>, 2> queries_of(Index g) const {
    std::vector<T> q(in_.d * W);
    pack_query_panel(group_, in_, g, panel_, q.data());
    std::array<std::vector<T>, 2> of_parts;
    for (std::size_t i = 0; i < of_parts.size(); ++i)
      for (const Index c : columns_.parts[i].channels)
        of_parts[i].insert(of_parts[i].end(), q.begin() + c * W, q.begin() + (c + 1) * W);
    return of_parts;
  }

  /// The columns [first, first + tokens) by parts, and their values in the order of their positions, in which
  /// attention runs over them: how they fall into parts then changes no byte of it.
  void take_tile(Index first, Index tokens) {
    tokens_ = tokens;
    const auto part = columns_.part.begin() + first;
    const Index whole = std::count(part, part + tokens, 0);
    ranges_ = {Range{0, whole, 0}, Range{0, tokens - whole, whole}};
    for (std::size_t i = 0; i < ranges_.size(); ++i)
      ranges_[i].from = first_at(columns_.parts[i].positions, columns_.positions[first]);
    std::array<Index, 2> next = {0, whole};
    for (Index t = 0; t < tokens; ++t) {
      row_[t] = next[part[t]]++;
      const T* v = columns_.values[first + t];
      for (Index c = 0; c < in_.d_v; ++c) values_[t * in_.d_v + c] = v[c] - centre_(c);
    }
  }

  /// z_ := the tile's logits of query head g.
  void find_logits(Index g, const std::array<std::vector<T>, 2>& q) {
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      const Part<T>& part = columns_.parts[i];
      const Range& range = ranges_[i];
      const Index* positions = part.positions.data() + range.from;
      const Index depth = part.keys.cols();
      T* z = z_.data() + range.row * W;
      if (!kept_tiles_simd<T>().gathered_logits(in_, panel_, positions, range.n,
                                                part.keys.data() + range.from * depth, q[i].data(), depth, z))
        require_finite_logits(group_, in_, g, panel_, positions, range.n, z);
      for (Index t = 0; t < range.n && part.bias.size() > 0; ++t)
        for (Index r = 0; r < W; ++r) z[t * W + r] += part.bias[range.from + t];
    }
  }

  const HeadGroup<T>& group_;
  const TileInput<T>& in_;
  const Columns<T>& columns_;
  const Vector<T>& centre_;
  Index panel_, tokens_ = 0;
  std::array<Range, 2> ranges_{};
  std::array<Index, kTokensPassOne> row_;  // of z_, of each column
  std::vector<T> values_ = std::vector<T>(kTokensPassOne * in_.d_v);
  std::vector<T> z_ = std::vector<T>(kTokensPassOne * W);
};

template <class T>
PanelRows<T> empty_panels(Index G, Index panels, Index rows_of_panel) {
  return PanelRows<T>(G, std::vector<T>(panels * rows_of_panel * kPanelWidth<T>));
}

/// Runs body(g, panel, output over `columns`) -> a sum of squares for all query heads and panels, and adds
/// these up in order. The later panels see the most: they come first, so that a short item ends the queue.
template <class T, class Body>
double sum_over_panels(const HeadGroup<T>& group, const TileInput<T>& in, const Columns<T>& columns,
                       const Vector<T>& centre, Workers& workers, const Body& body) {
  const Index G = group.G(), panels = in.panels();
  const Index together = heads_together(G, panels, workers.threads());
  const Index chunks = div_up(G, together);
  std::vector<double> items(G * panels);
  workers.parallel_for(chunks * panels, [&](Index item) {
    const Index first = item % chunks * together, panel = panels - 1 - item / chunks;
    std::vector<AttendedOutput<T>> heads(std::min(together, G - first));
    PanelAttention<T>(group, in, columns, centre, panel).attend(first, heads);
    for (std::size_t h = 0; h < heads.size(); ++h) {
      const Index g = first + static_cast<Index>(h);
      const double sum = body(g, panel, heads[h]);
      if (!std::isfinite(sum))
        report_overflow(group, g, "positions from " + std::to_string(in.panel_first(panel)));
      items[g * panels + panel] = sum;
    }
  });
  return std::accumulate(items.begin(), items.end(), 0.0);
}

}  // namespace

/// The same in float64, from the values as they are.
template <class T>
struct CompressedOutputs<T>::Wide {
  Wide(const HeadGroup<T>& narrow, RowRange rows, Workers& workers)
      : group(converted<double>(narrow)),
        outputs(group, rows, workers, Vector<double>::Zero(narrow.d_v())),
        lost(outputs.full_sq() < std::numeric_limits<double>::min() && !group.v.isZero(0)) {}

  const HeadGroup<double> group;
  const CompressedOutputs<double> outputs;
  const bool lost;  // the outputs' squares, below float64's range
};

template <class T>
CompressedOutputs<T>::CompressedOutputs(const HeadGroup<T>& group, RowRange rows, Workers& workers)
    : CompressedOutputs(group, rows, workers, prepare_values(group, workers).centre) {
  if (!vanishing(group, rows, centre_, full_sq_)) return;
  wide_ = std::make_shared<const Wide>(group, rows, workers);
  full_sq_ = wide_->outputs.full_sq();
  full_ = in_panels_of<T>(wide_->outputs.full(), rows.count(), group.d_v());
}

template <class T>
CompressedOutputs<T>::CompressedOutputs(const HeadGroup<T>& group, RowRange rows, Workers& workers,
                                        Vector<T> centre)
    : group_(group), rows_(rows), workers_(workers), centre_(std::move(centre)) {
  constexpr Index W = kPanelWidth<T>;
  const TileInput<T> in = tile_input(group, PreparedValues<T>(), rows);
  const KeptSet all(group.l, 1);
  const Columns<T> columns = gather(group, {group.k, group.v, {}, all, {}, {}}, workers);
  full_ = empty_panels<T>(group.G(), in.panels(), in.d_v);
  attended_.resize(group.G() * in.panels());
  full_sq_ = sum_over_panels(
      group, in, columns, centre_, workers, [&](Index g, Index panel, AttendedOutput<T>& all) {
        T* full = full_[g].data() + panel * in.d_v * W;
        const double sum =
            kept_tiles_simd<T>().output_change(all, nullptr, centre_.data(), in.panel_rows(panel), full);
        attended_[g * in.panels() + panel] = std::move(all);
        return sum;
      });
}

template <class T>
typename CompressedOutputs<T>::Change CompressedOutputs<T>::change(
    const HeadMatrix<T>& k, const HeadMatrix<T>& v, const Vector<T>& bias, const KeptSet& kept,
    const ChannelSet& pruned, const KeptSet& prunable, bool with_vectors) const {
  if (wide_) {
    const auto found =
        wide_->outputs.change(k.template cast<double>(), v.template cast<double>(),
                              bias.template cast<double>(), kept, pruned, prunable, with_vectors);
    const bool alike = !wide_->lost || holds_the_same(group_, Held<T>{k, v, bias, kept, pruned, prunable});
    return {!alike ? at_least_some(found.change_sq) : found.change_sq,
            in_panels_of<T>(found.vectors, rows_.count(), group_.d_v())};
  }
  constexpr Index W = kPanelWidth<T>;
  const TileInput<T> in = tile_input(group_, PreparedValues<T>(), rows_);
  const Columns<T> columns = gather(group_, {k, v, bias, kept, pruned, prunable}, workers_);
  Change result;
  if (with_vectors) result.vectors = empty_panels<T>(group_.G(), in.panels(), in.d_v);
  const auto change_of = [&](Index g, Index panel, const AttendedOutput<T>& held) {
    T* vectors = with_vectors ? result.vectors[g].data() + panel * in.d_v * W : nullptr;
    return kept_tiles_simd<T>().output_change(held, &attended_[g * in.panels() + panel], centre_.data(),
                                              in.panel_rows(panel), vectors);
  };
  result.change_sq = sum_over_panels(group_, in, columns, centre_, workers_, change_of);
  return result;
}

template class CompressedOutputs<float>;
template class CompressedOutputs<double>;

}  // namespace kvreplay
