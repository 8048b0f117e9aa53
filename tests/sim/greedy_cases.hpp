#pragma once

#include "sim/attention.hpp"
#include "sim/kept_set.hpp"
#include "sim/tokens/token_metrics.hpp"
#include "tests/support/random_group.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace kvreplay::test {

/// E(M) from the definition, in long double: the error, or with gradients the loss.
class SetErrorJudge {
  using Wide = long double;

 public:
  SetErrorJudge(const HeadGroup<double>& group, RowRange rows,
                const RowGradients<double>* gradients = nullptr)
      : v_(group.v.cast<Wide>()), begin_(static_cast<std::size_t>(group.first_held())) {
    for (Index g = 0; g < group.G(); ++g) {
      const double sink =
          group.rule.sink_logit.empty() ? -std::numeric_limits<double>::infinity() : group.rule.sink_logit[g];
      for (Index i = rows.begin; i < rows.end; ++i) {
        z_.push_back(attention_logits(group, g, i).z.cast<Wide>());
        sinks_.push_back(sink);
        weights_.push_back(weights(z_.size() - 1, KeptSet(static_cast<std::size_t>(group.l), 1)));
        if (gradients == nullptr) continue;
        g_.emplace_back(gradients->samples, group.d_v());
        for (Index s = 0; s < gradients->samples; ++s)
          g_.back().row(s) = gradients->g[g].row(gradients->at(s, i)).cast<Wide>();
      }
    }
    // Weights near 1 are known to 1e-19: this much of o^M - o is rounding.
    const double largest = group.v.size() > 0 ? group.v.cwiseAbs().maxCoeff() : 0.0;
    rounding_ = 1e-18 * largest * std::sqrt(static_cast<double>(z_.size() * group.v.cols()));
    double longest = 0;
    for (const Matrix<Wide>& g : g_) longest = std::max(longest, static_cast<double>(g.norm()));
    if (gradients != nullptr) rounding_ *= longest;
  }
  /// The first candidate's position.
  std::size_t begin() const { return begin_; }
  double error(const KeptSet& kept) const {
    Wide sum = 0;
    for (std::size_t r = 0; r < z_.size(); ++r) {
      const Vector<Wide> change = v_.transpose() * (weights(r, kept) - weights_[r]);
      sum += g_.empty() ? change.squaredNorm()
                        : (g_[r] * change).squaredNorm() / static_cast<Wide>(2 * g_[r].rows());
    }
    return static_cast<double>(sum);
  }
  /// How far an error of this size may be from the truth. Logits of 200 are known to some 1e-13 in float64,
  /// and so are weights; 1e-290 is where squares of weights leave its range.
  double slack(double error, double relative) const {
    return relative * error + 2 * std::sqrt(error) * rounding_ + rounding_ * rounding_ + 1e-290;
  }

 private:
  Vector<Wide> weights(std::size_t r, const KeptSet& kept) const {
    Vector<Wide> w = z_[r];
    for (std::size_t p = begin_; p < kept.size(); ++p)  // earlier positions are always visible
      if (kept[p] == 0) w[static_cast<Index>(p)] = -std::numeric_limits<Wide>::infinity();
    const Wide largest = std::max<Wide>(sinks_[r], w.maxCoeff());
    if (std::isinf(largest)) return Vector<Wide>::Zero(w.size());
    for (Wide& x : w) x = std::exp(x - largest);
    return w / (w.sum() + std::exp(sinks_[r] - largest));
  }

  Matrix<Wide> v_;
  std::size_t begin_;  // first candidate
  std::vector<Vector<Wide>> z_, weights_;
  std::vector<Matrix<Wide>> g_;  // of each row, [S, d_v]
  std::vector<Wide> sinks_;
  double rounding_ = 0;
};

struct GreedyCase {
  std::string name;
  GroupSpec spec;
  Index window = 8;
};

inline const std::vector<GreedyCase>& greedy_cases() {
  static const std::vector<GreedyCase> list{
      {"plain", {}},
      {"G = 1", {.G = 1}},
      {"G = 3", {.G = 3}},
      {"window 1", {}, 1},
      {"whole prompt", {}, 20},
      {"odd d, d_v larger", {.d = 5, .d_v = 17}},
      {"odd d, d_v smaller", {.d = 7, .d_v = 3}},
      {"d = 1", {.G = 1, .d = 1, .d_v = 1}},
      {"no decoded rows", {.l = 20, .T = 20}},
      {"one token", {.l = 1, .T = 1}},
      {"one token, one decoded", {.l = 1, .T = 2}},
      {"two tokens", {.l = 2, .T = 3}},
      {"block edge, l = 16", {.l = 16, .T = 18}},
      {"block edge, l = 17", {.l = 17, .T = 18}},
      {"l = 33", {.l = 33, .T = 35, .G = 1}, 5},
      {"few queries", {.T_q = 5}},
      {"values far from 0", {.value_offset = 1e5}, 20},
      {"sink", {.attention_sink = 0}},
      {"sink, whole prompt", {.attention_sink = 0}, 20},
      {"sink in mid prompt", {.attention_sink = 11}, 20},
      {"sink, values far from 0", {.value_offset = 30.0, .attention_sink = 2}, 8},
      {"sink among the decoded", {.attention_sink = 21}},
      {"sink, logits + 200", {.logit_shift = 200.0, .attention_sink = 3}, 20},
      {"sink, logits - 200", {.logit_shift = -200.0, .attention_sink = 3}, 20},
      {"logits + 200", {.logit_shift = 200.0}, 20},
      {"logits - 200", {.logit_shift = -200.0}, 20},
      {"logits times 20", {.logit_std = 20.0}, 8},
      {"logits times 20, whole prompt", {.logit_std = 20.0}, 20},
      {"logits times 400", {.logit_std = 400.0}, 20},
      {"logits times 20, - 200", {.logit_std = 20.0, .logit_shift = -200.0}, 20},
      {"logits times 1e-3", {.logit_std = 1e-3}},
      {"sliding window 5", {.sliding_window = 5}, 20},
      {"sliding window 1", {.sliding_window = 1}, 20},
      {"sliding window longer than all", {.sliding_window = 64}},
      {"sliding window and a sink that leaves it", {.attention_sink = 9, .sliding_window = 6}, 20},
      {"soft cap", {.logit_std = 20.0, .softcap = 8.0}, 20},
      {"sink logit", {.sink_logit = 2.0}, 20},
      {"sink logit far above", {.sink_logit = 30.0}},
      {"sink logit that takes all", {.sink_logit = 1000.0}, 8},
      {"sink logit far below", {.sink_logit = -300.0}},
      {"sink logit and sink", {.attention_sink = 0, .sink_logit = 3.0}, 20},
      {"non-causal", {.causal = false}},
      {"all at once", {.G = 3, .logit_std = 5.0, .sliding_window = 9, .softcap = 8.0, .sink_logit = 1.0}, 20},
  };
  return list;
}

/// GroupSpec's own lengths are longer than the reference likes.
inline HeadGroup<double> group_of(const GreedyCase& c, std::uint64_t seed) {
  GroupSpec spec = c.spec;
  if (spec.l == GroupSpec{}.l) spec.l = 20;
  if (spec.T == GroupSpec{}.T) spec.T = 24;
  spec.seed = seed;
  spec.window_gradients = spec.l;
  return random_group(spec);
}

inline std::vector<RowRange> row_sets(const HeadGroup<double>& group, Index window) {
  return {window_rows(group.l, group.first_query(), window),
          future_rows(group.l, group.T_all(), group.first_query())};
}

}  // namespace kvreplay::test
