#include "sim/cache/kept_tiles.hpp"
#include "sim/channels/output_interaction.hpp"
#include "sim/gram_sums.hpp"
#include "sim/overflow.hpp"
#include "sim/tokens/column_totals.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

namespace kvreplay {
namespace {

constexpr Index kMostSums = 32;        // of panels, which bounds the memory for their float64 sums
constexpr Index kRowsPerItem = 4;      // of a panel, with a float64 sum of their own
constexpr Index kKeysPerTile = 64;     // whose weighted values fit the first cache
constexpr Index kColumnsPerSum = 252;  // of a weighted sum of values in T

/// The prunable keys less their mean, in panels. A constant added to a channel of all keys multiplies the sum
/// of a_p (v_p - o) over them. This sum is 0 where they have all of the weight, but the product would drown
/// the rest in rounding.
template <class T>
struct CentredKeys {
  std::vector<Index> positions;  ///< ascending
  Vector<T> mean;                ///< [d], or a sample's: any constant serves
  std::vector<T> panels;         ///< [ceil(d / W)][keys][W]

  Index n() const { return std::ssize(positions); }
  const T* from(Index panel, Index key) const { return panels.data() + (panel * n() + key) * kPanelWidth<T>; }
  /// Number of keys before a position.
  Index before(Index position) const {
    return std::lower_bound(positions.begin(), positions.end(), position) - positions.begin();
  }
};

template <class T>
CentredKeys<T> centred_keys(const HeadGroup<T>& group, const PrunableKeys& keys, Workers& workers) {
  constexpr Index kChunk = 512;
  CentredKeys<T> centred;
  centred.positions = positions(keys.prunable);
  const Index n = centred.n(), d = group.d();
  centred.mean = sampled_key_mean(group, centred.positions);
  centred.panels.resize(panels_of<T>(d) * n * kPanelWidth<T>);
  workers.parallel_for(div_up(n, kChunk), [&](Index chunk) {
    for (Index key = chunk * kChunk; key < std::min((chunk + 1) * kChunk, n); ++key) {
      const T* k = group.k.data() + centred.positions[key] * d;
      for (Index c = 0; c < d; ++c) centred.panels[panel_entry<T>(key, c, n)] = k[c] - centred.mean(c);
    }
  });
  return centred;
}

/// The work of one panel of one query head's rows, and what its rows share.
template <class T>
class PanelDerivatives {
 public:
  static constexpr Index W = kPanelWidth<T>;

  PanelDerivatives(const HeadGroup<T>& group, const PreparedValues<T>& values, const CentredKeys<T>& keys,
                   const PrunableKeys& which, RowRange rows, Index g, Index panel)
      : group_(group),
        values_(values),
        keys_(keys),
        in_(tile_input(group, values, rows)),
        g_(g),
        first_(in_.panel_first(panel)),
        n_(in_.panel_last(panel) - first_ + 1),
        begin_(in_.first_visible(first_)),
        columns_(in_.end_visible(in_.panel_last(panel)) - begin_) {
    in_.softcap = 0;  // the weights need the logits before it
    rest_.resize(columns_ * W);
    changed_.resize(rest_.size());
    find_logits(which, panel);
    std::vector<std::uint8_t> prunable(columns_);
    for (Index p = begin_; p < std::min(begin_ + columns_, group.l); ++p)
      prunable[p - begin_] = which.prunable[p];
    weights_.changed = changed_.data();
    weights_.rest = rest_.data();
    output_interaction_simd<T>().weigh_panel(rest_.data(), columns_,
                                             static_cast<T>(group.rule.softcap.value_or(0)),
                                             sink_logit(group, g), prunable.data(), weights_);
    sum_values();
  }

  Index rows() const { return n_; }

  /// blocks += the sum of D_i,c . D_i,e over the rows [row, end) of the panel, at most kRowsPerItem. The rows
  /// share a tile of keys and values while it is in the cache.
  void add_rows(Index row, Index end, double* blocks) const {
    const Index d = group_.d(), d_v = group_.d_v(), panels = panels_of<T>(d);
    std::vector<RowDerivatives> rows(end - row);
    for (Index r = row; r < end; ++r) {
      RowDerivatives& one = rows[r - row];
      one.mean.resize(d_v);
      one.shift.resize(d_v);
      one.origin = row_means(r, one.mean, one.shift);
      one.first = keys_.before(group_.first_visible(first_ + r));
      one.last = keys_.before(group_.end_visible(first_ + r));
      one.D.assign(panels * d_v * W, T{0});
    }
    std::vector<T> tile(kKeysPerTile * d_v);
    std::array<T, kKeysPerTile> weights;
    for (Index key = rows.front().first; key < rows.back().last; key += kKeysPerTile)
      for (Index r = row; r < end; ++r) {
        RowDerivatives& one = rows[r - row];
        const Index from = std::max(key, one.first), n = std::min(key + kKeysPerTile, one.last) - from;
        if (n <= 0) continue;
        row_weights(r, from, n, weights.data());
        output_interaction_simd<T>().weighted_deviations(in_.v_centred, d_v, keys_.positions.data() + from,
                                                         weights.data(), n, one.origin, one.mean.data(),
                                                         tile.data());
        for (Index j = 0; j < panels; ++j)
          kept_tiles_simd<T>().project_panel(tile.data(), n, d_v, keys_.from(j, from),
                                             one.D.data() + j * d_v * W);
      }
    for (Index r = row; r < end; ++r) {
      RowDerivatives& one = rows[r - row];
      scale_derivatives(r, one.shift, one.D.data());
      add_gram(one.D.data(), d_v, d, blocks);
    }
  }

 private:
  /// One row's sum over its keys [first, last).
  struct RowDerivatives {
    const T* origin;        // [d_v]
    Vector<T> mean, shift;  // [d_v]
    Index first, last;
    std::vector<T> D;  // [panels][d_v][W], transposed
  };

  /// D [panels][d_v][W]: C^T less the part of the keys' mean -> D^T.
  void scale_derivatives(Index r, const Vector<T>& shift, T* D) const {
    const Index d = group_.d(), d_v = group_.d_v();
    const T* q = group_.q[g_].data() + (first_ + r - group_.first_query()) * d;
    for (Index j = 0; j < d; j += W)
      for (Index e = 0; e < d_v; ++e) {
        T* row = D + j * d_v + e * W;
        for (Index c = 0; c < std::min(W, d - j); ++c)
          row[c] = -static_cast<T>(group_.rule.scale) * q[j + c] * (row[c] + keys_.mean(j + c) * shift(e));
      }
  }

  /// rest_ := the raw logits of the cache's columns. Throws where a row sees one beyond T.
  void find_logits(const PrunableKeys& which, Index panel) {
    std::vector<T> q(in_.d * W);
    pack_query_panel(group_, in_, g_, panel, q.data());
    TileInput<T> mine = in_;
    mine.q_panels = q.data() - panel * in_.d * W;
    const bool finite =
        kept_tiles_simd<T>().logit_panel(mine, panel, begin_, begin_ + columns_, rest_.data());
    for (Index t = 0; t < columns_; ++t) {
      const Index p = begin_ + t;
      T* z = rest_.data() + t * W;
      if (p < group_.l && which.cache[p] == 0) {
        std::fill_n(z, W, -std::numeric_limits<T>::infinity());
        continue;
      }
      for (Index r = 0; r < n_ && !finite; ++r)
        if (p >= in_.first_visible(first_ + r) && p < in_.end_visible(first_ + r) && !std::isfinite(z[r]))
          report_overflow(group_, g_, "position " + std::to_string(first_ + r));
    }
  }

  /// The weighted sums of all rows' values, about the values' centre, without each row's largest column.
  void sum_values() {
    const Index d_v = group_.d_v();
    changed_values_.resize(d_v * W);
    rest_values_.resize(changed_values_.size());
    for (Index t = 0; t < columns_; t += kColumnsPerSum) {
      const Index n = std::min(kColumnsPerSum, columns_ - t);
      const T* v = in_.v_centred + (begin_ + t) * d_v;
      kept_tiles_simd<T>().project_panel(v, n, d_v, changed_.data() + t * W, changed_values_.data());
      kept_tiles_simd<T>().project_panel(v, n, d_v, rest_.data() + t * W, rest_values_.data());
    }
    sink_value_ = -values_.centre;
    for (Index c = 0; c < d_v; ++c)
      for (Index r = 0; r < W; ++r) rest_values_[c * W + r] += weights_.sink[r] * sink_value_(c);
  }

  /// With u_p = v_p - v_t, t the row's largest column: `mean` = o - v_t, the sum of a_p u_p over the others,
  /// and `shift`, the sum over the prunable keys of a_p (v_p - o). Returns v_t, less the values' centre.
  const T* row_means(Index r, Vector<T>& mean, Vector<T>& shift) const {
    const Index at = static_cast<Index>(weights_.top_at[r]);
    const T* origin = at < 0 ? sink_value_.data() : in_.v_centred + (begin_ + at) * group_.d_v();
    const T changed = weights_.changed_sum[r], rest = weights_.rest_sum[r];
    // Over all columns a_p (v_p - o) adds up to 0: the shift comes from the part that cancels less.
    const T others = changed + rest;
    const bool direct = changed + weights_.top_changed[r] * others <= rest + weights_.top_rest[r] * others;
    for (Index e = 0; e < group_.d_v(); ++e) {
      const auto entry = static_cast<std::size_t>(e * W + r);
      const T of_changed = changed_values_[entry] - changed * origin[e];
      const T of_rest = rest_values_[entry] - rest * origin[e];
      mean(e) = of_changed + of_rest;
      shift(e) = direct ? of_changed - (changed + weights_.top_changed[r]) * mean(e)
                        : (rest + weights_.top_rest[r]) * mean(e) - of_rest;
    }
    return origin;
  }

  /// The row's weights of n keys from `first` on, its largest column's among them.
  void row_weights(Index r, Index first, Index n, T* weights) const {
    const Index top = static_cast<Index>(weights_.top_at[r]);
    for (Index key = 0; key < n; ++key) {
      const Index t = keys_.positions[first + key] - begin_;
      weights[key] = t == top ? weights_.top_changed[r] : changed_[t * W + r];
    }
  }

  const HeadGroup<T>& group_;
  const PreparedValues<T>& values_;
  const CentredKeys<T>& keys_;
  TileInput<T> in_;
  Index g_, first_, n_, begin_, columns_;
  std::vector<T> rest_, changed_;  // [columns][W]
  PanelWeights<T> weights_{};
  std::vector<T> changed_values_, rest_values_;  // [d_v][W]
  Vector<T> sink_value_;                         // [d_v], the sink's value 0 less the centre
};

/// The rows of a panel in parts with a sum each, which add up in order.
template <class T>
void add_panel(const PanelDerivatives<T>& panel, Index d, Workers& workers, std::vector<double>& sum) {
  GramSums parts(div_up(panel.rows(), kRowsPerItem));
  workers.parallel_for(std::ssize(parts), [&](Index item) {
    std::vector<double>& part = parts[item];
    part.resize(gram_blocks_size<T>(d));
    panel.add_rows(item * kRowsPerItem, std::min((item + 1) * kRowsPerItem, panel.rows()), part.data());
  });
  for (const std::vector<double>& part : parts)
    for (std::size_t e = 0; e < sum.size(); ++e) sum[e] += part[e];
}

}  // namespace

PrunableKeys prompt_keys(Index l, Index recent) {
  const KeptSet all(l, 1);
  return {all, without_recent(all, recent)};
}

template <class T>
Matrix<double> output_interaction(const HeadGroup<T>& group, RowRange rows, const PrunableKeys& keys,
                                  Workers& workers) {
  const PreparedValues<T> values = prepare_values(group, workers);
  const CentredKeys<T> centred = centred_keys(group, keys, workers);
  const Index panels = tile_input(group, values, rows).panels(), items = group.G() * panels;
  const Index per_sum = div_up(items, kMostSums);
  GramSums sums(div_up(items, per_sum));
  workers.parallel_for(std::ssize(sums), [&](Index item) {
    std::vector<double>& sum = sums[item];
    sum.resize(gram_blocks_size<T>(group.d()));
    for (Index n = item * per_sum; n < std::min((item + 1) * per_sum, items); ++n) {
      const Index g = n / panels, panel = n % panels;
      const PanelDerivatives<T> rows_of(group, values, centred, keys, rows, g, panel);
      add_panel(rows_of, group.d(), workers, sum);
      if (!std::all_of(sum.begin(), sum.end(), [](double x) { return std::isfinite(x); }))
        report_overflow(group, g, "positions from " + std::to_string(rows.begin + panel * kPanelWidth<T>));
    }
  });
  return total_gram<T>(sums, group.d(), workers);
}

template Matrix<double> output_interaction(const HeadGroup<float>&, RowRange, const PrunableKeys&, Workers&);
template Matrix<double> output_interaction(const HeadGroup<double>&, RowRange, const PrunableKeys&, Workers&);

}  // namespace kvreplay
