#include "sim/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace kvreplay {
namespace {

constexpr double kHidden = -std::numeric_limits<double>::infinity();

// Weights are formed in long double: a changed row of weights is compared with the unchanged one, and where
// the change is small the difference must still have all of a double's digits.
using Wide = long double;
using WideVector = Vector<Wide>;

double soft_capped(const AttentionRule& rule, double raw) {
  return rule.softcap ? *rule.softcap * std::tanh(raw / *rule.softcap) : raw;
}

/// Softmax of a row of logits and a sink column: weight m is e[m] * inverse_sum.
class Softmax {
 public:
  Softmax(const Vector<double>& z, double sink) : z_(z), sink_(sink), e_(z.size()) { replace(-1, 0.0); }

  /// Starts again from z with z[p] replaced by `logit`. Rows that differ in one logit mostly share their
  /// maximum; their other numerators are then the same numbers, which are kept. The sum is always taken anew.
  void replace(Index p, double logit) {
    if (p_ >= 0) e_[p_] = numerator(z_[p_]);
    p_ = p;
    const double z_p = p >= 0 ? std::exchange(z_[p], logit) : 0.0;
    const double largest = z_.size() > 0 ? std::max(sink_, z_.maxCoeff()) : sink_;
    if (p >= 0) z_[p] = z_p;
    // with nothing left to look at every numerator is exp(-inf) = 0
    const double shift = largest == kHidden ? 0.0 : largest;
    if (shift != shift_) {
      shift_ = shift;
      for (Index m = 0; m < z_.size(); ++m) e_[m] = numerator(z_[m]);
    }
    if (p >= 0) e_[p] = numerator(logit);
    const Wide sum = numerator(sink_) + sum_of_numerators();
    inverse_sum_ = sum > 0 ? 1 / sum : 0;
  }
  Wide operator[](Index m) const { return e_[m] * inverse_sum_; }

 private:
  Wide numerator(double z) const { return std::exp(static_cast<Wide>(z) - shift_); }
  Wide sum_of_numerators() const {
    Wide even = 0;  // two chains of additions: in one, each waits for the one before
    Wide odd = 0;
    Index m = 0;
    for (; m + 1 < e_.size(); m += 2) {
      even += e_[m];
      odd += e_[m + 1];
    }
    return even + odd + (m < e_.size() ? e_[m] : 0);
  }

  Vector<double> z_;
  double sink_;
  double shift_ = std::numeric_limits<double>::quiet_NaN();  // differs from every shift
  Index p_ = -1;
  WideVector e_;
  Wide inverse_sum_ = 0;
};

}  // namespace

LogitRow attention_logits(const HeadGroup<double>& group, Index g, Index i) {
  const auto query = group.q[g].row(i - group.first_query());
  LogitRow row;
  row.raw.setConstant(group.T_all(), kHidden);
  row.z = row.raw;
  for (Index p = group.first_visible(i); p < group.end_visible(i); ++p) {
    row.raw[p] = group.rule.scale * query.dot(group.k.row(p));
    row.z[p] = soft_capped(group.rule, row.raw[p]);
  }
  return row;
}

Vector<double> attention_weights(const HeadGroup<double>& group, Index g, const Vector<double>& z) {
  const Softmax softmax(z, group.sink(g));
  Vector<double> weights(z.size());
  for (Index m = 0; m < z.size(); ++m) weights[m] = static_cast<double>(softmax[m]);
  return weights;
}

Vector<double> attention_output(const HeadGroup<double>& group, Index g, Index i) {
  return group.v.transpose() * attention_weights(group, g, attention_logits(group, g, i).z);
}

Vector<double> brute_force_errors(const HeadGroup<double>& group, Index g, Index i, TokenChange change,
                                  const std::vector<Index>& tokens) {
  const Index first = group.first_visible(i);
  const Index visible = group.end_visible(i) - first;
  const double sink = group.sink(g);
  const Vector<double> z = attention_logits(group, g, i).z.segment(first, visible);

  Softmax softmax(z, sink);
  WideVector before(visible);
  for (Index m = 0; m < visible; ++m) before[m] = softmax[m];

  const bool key_changes = change == TokenChange::zero_key || change == TokenChange::zero_key_and_value;
  const bool value_changes = change == TokenChange::zero_value || change == TokenChange::zero_key_and_value;
  const double zero_key_logit = soft_capped(group.rule, 0.0);

  // The change of o_i is (weights after - weights before) V, one row a token; a value that becomes 0 is the
  // same as its weight becoming 0 after the softmax. Tokens are stacked in blocks, so that memory stays small
  // and the products with V are those of matrices.
  constexpr Index kBlock = 64;
  Vector<double> errors = Vector<double>::Zero(std::ssize(tokens));
  Matrix<double> weight_change(kBlock, visible);
  Matrix<double> output_change;
  for (Index begin = 0; begin < errors.size(); begin += kBlock) {
    const Index count = std::min(kBlock, errors.size() - begin);
    for (Index t = 0; t < count; ++t) {
      const Index p = tokens[begin + t] - first;
      if (p < 0 || p >= visible) {
        weight_change.row(t).setZero();
        continue;
      }
      if (change == TokenChange::remove) softmax.replace(p, kHidden);
      if (key_changes) softmax.replace(p, zero_key_logit);
      for (Index m = 0; m < visible; ++m) weight_change(t, m) = static_cast<double>(softmax[m] - before[m]);
      if (value_changes) weight_change(t, p) = static_cast<double>(-before[p]);
    }
    output_change.noalias() = weight_change.topRows(count) * group.v.middleRows(first, visible);
    errors.segment(begin, count) = output_change.rowwise().squaredNorm();
  }
  return errors;
}

}  // namespace kvreplay
