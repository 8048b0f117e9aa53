#include "sim/tokens/loss_totals.hpp"

#include "sim/simd/panel_gemm.hpp"
#include "sim/softmax_lanes.hpp"
#include "sim/tokens/column_totals.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay {
namespace {

/// Tokens of an item: their values, two tiles and a panel of gradients stay in the nearest cache.
constexpr Index kLossTokensPerItem = 72;

template <class T>
using LanesAt = Eigen::Map<Lanes<T>>;

/// One query head's gradients, times a power of two that makes their squares fit T, and what they make of the
/// rows' outputs.
template <class T>
struct GradientPanels {
  std::vector<T> g;                // [panels][S][d_v][W], 0 in the padding
  std::vector<T> of_output;        // [panels][S][W], g . (o - centre)
  std::vector<T> of_output_sq;     // [panels][W], sum over s of its squares
  std::vector<double> of_largest;  // [rows], sum over s of (g . (o' - o))^2 for the row's largest column
};

template <class T>
class LossPass {
 public:
  /// units [G]: gradient_unit() of the gradients.
  LossPass(const HeadGroup<T>& group, const PreparedValues<T>& values, const RowGradients<T>& gradients,
           const std::vector<double>& units, const RowBatch& batch, Workers& workers)
      : gradients_(gradients),
        units_(units),
        rows_(batch.rows),
        first_(first_scored(group, rows_)),
        scored_(std::min(group.l, group.end_visible(rows_.end - 1))),
        S_(gradients.samples),
        d_v_(group.d_v()),
        heads_(softmax_rows(group, values, rows_, {.others = true, .keep_logits = batch.keep_logits},
                            workers)) {}

  /// Adds its rows to the totals of every query head, in squares of their units.
  void add_to(std::vector<LossTotals>& totals, Workers& workers) {
    const Index G = std::ssize(heads_), panels = heads_.front().in.panels();
    panels_.resize(G);
    for (GradientPanels<T>& p : panels_) {
      p.g.resize(panels * S_ * d_v_ * W);
      p.of_output.resize(panels * S_ * W);
      p.of_output_sq.resize(panels * W);
      p.of_largest.resize(rows_.count());
    }
    workers.parallel_for(G * panels, [&](Index item) { pack(item / panels, item % panels); });

    const Index items = div_up(std::max<Index>(scored_ - first_, 0), kLossTokensPerItem);
    workers.parallel_for(G * items, [&](Index item) {
      const Index g = item % G, begin = first_ + item / G * kLossTokensPerItem;
      add_tokens(g, begin, std::min(begin + kLossTokensPerItem, scored_), totals[g]);
    });
    for (Index g = 0; g < G; ++g) add_largest_columns(g, totals[g]);
  }

 private:
  static constexpr Index W = kPanelWidth<T>;

  /// Gradients and outputs of one panel of rows.
  void pack(Index g, Index panel) {
    const HeadRows<T>& head = heads_[g];
    GradientPanels<T>& to = panels_[g];
    const Index n = head.in.panel_rows(panel), first = head.in.panel_first(panel);
    const T unit = static_cast<T>(units_[g]);
    const T* const out = head.out_panels.get() + panel * d_v_ * W;
    std::vector<T> diff(d_v_ * W);  // o' - v of every row's largest column
    for (Index r = 0; r < n; ++r) {
      const T* const v = head.in.v_centred + top_at(head, panel, r) * d_v_;
      for (Index c = 0; c < d_v_; ++c) diff[c * W + r] = head.others[(panel * d_v_ + c) * W + r] - v[c];
    }
    LanesAt<T> out_sq(to.of_output_sq.data() + panel * W);
    out_sq.setZero();
    Eigen::Array<double, W, 1> largest_sq = Eigen::Array<double, W, 1>::Zero();
    for (Index s = 0; s < S_; ++s) {
      T* const packed = to.g.data() + (panel * S_ + s) * d_v_ * W;
      for (Index r = 0; r < n; ++r) {
        const T* const from = gradients_.g[g].data() + gradients_.at(s, first + r) * d_v_;
        for (Index c = 0; c < d_v_; ++c) packed[c * W + r] = unit * from[c];
      }
      LanesAt<T> of_output(to.of_output.data() + (panel * S_ + s) * W);
      of_output.setZero();
      Lanes<T> of_diff = Lanes<T>::Zero();
      for (Index c = 0; c < d_v_; ++c) {
        const LanesAt<T> lanes(packed + c * W);
        of_output += lanes * Eigen::Map<const Lanes<T>>(out + c * W);
        of_diff += lanes * LanesAt<T>(diff.data() + c * W);
      }
      out_sq += of_output.square();
      largest_sq += of_diff.template cast<double>().square();
    }
    for (Index r = 0; r < n; ++r) {
      const double a = head.largest[panel * W + r][RowScore::attention];
      to.of_largest[panel * W + r] = a * a * largest_sq[r];
    }
  }

  static Index top_at(const HeadRows<T>& head, Index panel, Index r) {
    return static_cast<Index>(head.largest[panel * W + r].at);
  }

  /// The tokens [begin, end), whose sums are this item's, added up in order of the rows.
  void add_tokens(Index g, Index begin, Index end, LossTotals& totals) const {
    const HeadRows<T>& head = heads_[g];
    const TileInput<T>& in = head.in;
    const GradientPanels<T>& gradients = panels_[g];
    const Index tokens = end - begin;
    std::vector<T> weights(tokens * W), of_value(tokens * W), squares(tokens * W);
    for (Index panel = 0; panel < in.panels(); ++panel) {
      if (begin >= in.end_visible(in.panel_last(panel)) || end <= in.first_visible(in.panel_first(panel)))
        continue;
      attend(head, panel, begin, tokens, weights.data());
      std::fill(squares.begin(), squares.end(), T{0});
      const T* const packed = gradients.g.data() + panel * S_ * d_v_ * W;
      for (Index s = 0; s < S_; ++s) {
        panel_gemm(tokens, d_v_, in.v_centred + begin * d_v_, d_v_, packed + s * d_v_ * W, of_value.data());
        const Eigen::Map<const Lanes<T>> of_output(gradients.of_output.data() + (panel * S_ + s) * W);
        for (Index t = 0; t < tokens; ++t)
          LanesAt<T>(squares.data() + t * W) += (of_output - LanesAt<T>(of_value.data() + t * W)).square();
      }
      const Eigen::Map<const Lanes<T>> of_output_sq(gradients.of_output_sq.data() + panel * W);
      for (Index t = 0; t < tokens; ++t) {
        const LanesAt<T> a(weights.data() + t * W);
        LanesAt<T> square(squares.data() + t * W);
        constexpr T kLightest = T(1) / 8192;  // below that weight it does not matter
        if ((a > kLightest && square < kCancelled<T> * of_output_sq).any())
          take_differences(head, packed, panel, begin + t, a, kCancelled<T> * of_output_sq, square);
        totals.loss[begin + t] += static_cast<double>(((a / (1 - a)).square() * square).sum());
        totals.max_attn[begin + t] = std::max(totals.max_attn[begin + t], static_cast<double>(a.maxCoeff()));
      }
    }
  }

  /// weights [tokens][W] that a panel's rows give the tokens from `begin` on; 0 where hidden, and for each
  /// row's largest column, which is scored apart.
  void attend(const HeadRows<T>& head, Index panel, Index begin, Index tokens, T* weights) const {
    const TileInput<T>& in = head.in;
    if (in.logits)
      std::copy_n(in.logits.at(panel, begin), tokens * W, weights);
    else
      panel_gemm(tokens, in.d, in.k + begin * in.d, in.d, head.q_panels.get() + panel * in.d * W, weights);
    const Eigen::Map<const Lanes<T>> lse(head.row_constants.get() + (panel * kRowConstants + kLse) * W);
    for (Index t = 0; t < tokens; ++t) {
      LanesAt<T> z(weights + t * W);
      if (in.softcap > 0) z = in.softcap * (z / in.softcap).tanh();
      z = (z - lse).exp();
    }
    for (Index r = 0; r < W; ++r) {
      const bool real = r < in.panel_rows(panel);
      const Index i = in.panel_first(panel) + r * in.row_step;
      const Index first = real ? std::clamp<Index>(in.first_visible(i) - begin, 0, tokens) : tokens;
      const Index last = real ? std::clamp<Index>(in.end_visible(i) - begin, 0, tokens) : tokens;
      for (Index t = 0; t < first; ++t) weights[t * W + r] = 0;
      for (Index t = last; t < tokens; ++t) weights[t * W + r] = 0;
      const Index top = real ? top_at(head, panel, r) - begin : -1;
      if (top >= 0 && top < tokens) weights[top * W + r] = 0;
    }
  }

  /// The squares of rows in which g . o and g . v nearly cancel, from o - v itself.
  void take_differences(const HeadRows<T>& head, const T* packed, Index panel, Index p, const LanesAt<T>& a,
                        const Lanes<T>& least, LanesAt<T>& square) const {
    const T* const v = head.in.v_centred + p * d_v_;
    const T* const out = head.out_panels.get() + panel * d_v_ * W;
    for (Index r = 0; r < W; ++r) {
      if (!(a[r] > 0 && square[r] < least[r])) continue;
      T sum = 0;
      for (Index s = 0; s < S_; ++s) {
        T dot = 0;
        for (Index c = 0; c < d_v_; ++c) dot += packed[(s * d_v_ + c) * W + r] * (out[c * W + r] - v[c]);
        sum += dot * dot;
      }
      square[r] = sum;
    }
  }

  void add_largest_columns(Index g, LossTotals& totals) const {
    for (std::size_t row = 0; row < heads_[g].largest.size(); ++row) {
      const LargestScores& column = heads_[g].largest[row];
      if (column.at >= totals.loss.size()) continue;  // a decoded position is no candidate
      totals.loss[column.at] += panels_[g].of_largest[row];
      totals.max_attn[column.at] = std::max(totals.max_attn[column.at], column[RowScore::attention]);
    }
  }

  const RowGradients<T>& gradients_;
  const std::vector<double>& units_;
  const RowRange rows_;
  const Index first_, scored_, S_, d_v_;
  std::vector<HeadRows<T>> heads_;
  std::vector<GradientPanels<T>> panels_;
};

}  // namespace

template <class T>
double gradient_unit(const Matrix<T>& numbers) {
  const double largest = static_cast<double>(numbers.cwiseAbs().maxCoeff());
  if (!(largest > 0) || !std::isfinite(largest)) return 1;
  int exponent = 0;
  std::frexp(largest, &exponent);
  return std::ldexp(1.0, std::clamp(-exponent, -120, 120));
}

template <class T>
std::vector<LossTotals> loss_totals(const HeadGroup<T>& group, const PreparedValues<T>& values,
                                    const RowGradients<T>& gradients, RowRange rows, Workers& workers,
                                    Index most_logits) {
  std::vector<double> units;
  for (const Matrix<T>& g : gradients.g) units.push_back(gradient_unit(g));
  const Vector<double> zero = Vector<double>::Zero(group.l);
  std::vector<LossTotals> totals(group.G(), {zero, zero});
  for (const RowBatch& batch : row_batches(group, rows, most_logits))
    LossPass<T>(group, values, gradients, units, batch, workers).add_to(totals, workers);
  for (Index g = 0; g < group.G(); ++g)
    totals[g].loss *= 0.5 / static_cast<double>(gradients.samples) / (units[g] * units[g]);
  return totals;
}

template double gradient_unit(const Matrix<float>&);
template double gradient_unit(const Matrix<double>&);
template decltype(loss_totals<float>) loss_totals<float>;
template decltype(loss_totals<double>) loss_totals<double>;

}  // namespace kvreplay
