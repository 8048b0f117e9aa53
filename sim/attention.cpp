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

double sink_of(const HeadGroup<double>& group, Index g) {
  return group.rule.sink_logit.empty() ? kHidden : group.rule.sink_logit[static_cast<std::size_t>(g)];
}

/// Softmax numerators exp(z - shift). Rows that differ in one logit mostly share their maximum; their other
/// numerators are then the same numbers and are not computed twice.
class Numerators {
 public:
  explicit Numerators(const Vector<double>& z) : z_(z), e_(z.size()) {}

  const WideVector& shifted_by(double shift) {
    if (!known_ || shift != shift_) {
      for (Index m = 0; m < z_.size(); ++m) e_[m] = std::exp(static_cast<Wide>(z_[m]) - shift);
      shift_ = shift;
      known_ = true;
    }
    return e_;
  }

 private:
  const Vector<double>& z_;
  WideVector e_;
  double shift_ = 0.0;
  bool known_ = false;
};

/// Softmax of z with z[p] replaced by z_p (p < 0: nothing is replaced) and one more column with logit `sink`.
void softmax_with(const Vector<double>& z, Index p, double z_p, double sink, Numerators& numerators,
                  WideVector& weights) {
  double largest = sink;
  for (Index m = 0; m < z.size(); ++m) largest = std::max(largest, m == p ? z_p : z[m]);
  if (largest == kHidden) {  // nothing left to look at
    weights.setZero(z.size());
    return;
  }
  weights = numerators.shifted_by(largest);
  if (p >= 0) weights[p] = std::exp(static_cast<Wide>(z_p) - largest);
  Wide sum = std::exp(static_cast<Wide>(sink) - largest);
  for (Index m = 0; m < z.size(); ++m) sum += weights[m];
  weights *= 1 / sum;
}

}  // namespace

LogitRow attention_logits(const HeadGroup<double>& group, Index g, Index i) {
  const auto query = group.q[static_cast<std::size_t>(g)].row(i - group.first_query());
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
  Numerators numerators(z);
  WideVector weights(z.size());
  softmax_with(z, -1, 0.0, sink_of(group, g), numerators, weights);
  return weights.cast<double>();
}

Vector<double> attention_output(const HeadGroup<double>& group, Index g, Index i) {
  return group.v.transpose() * attention_weights(group, g, attention_logits(group, g, i).z);
}

Vector<double> brute_force_errors(const HeadGroup<double>& group, Index g, Index i, TokenChange change,
                                  const std::vector<Index>& tokens) {
  const Index first = group.first_visible(i);
  const Index visible = group.end_visible(i) - first;
  const double sink = sink_of(group, g);
  const Vector<double> z = attention_logits(group, g, i).z.segment(first, visible);

  Numerators numerators(z);
  WideVector before(visible);
  WideVector after(visible);
  softmax_with(z, -1, 0.0, sink, numerators, before);

  const bool key_changes = change == TokenChange::zero_key || change == TokenChange::zero_key_and_value;
  const bool value_changes = change == TokenChange::zero_value || change == TokenChange::zero_key_and_value;
  const double zero_key_logit = soft_capped(group.rule, 0.0);

  // The change of o_i is (weights after - weights before) V, one row a token; a value that becomes 0 is the
  // same as its weight becoming 0 after the softmax. Tokens are stacked in blocks, so that memory stays small
  // and the products with V are those of matrices.
  constexpr Index kBlock = 64;
  Vector<double> errors = Vector<double>::Zero(static_cast<Index>(tokens.size()));
  Matrix<double> weight_change(kBlock, visible);
  Matrix<double> output_change;
  for (Index begin = 0; begin < errors.size(); begin += kBlock) {
    const Index count = std::min(kBlock, errors.size() - begin);
    for (Index t = 0; t < count; ++t) {
      const Index p = tokens[static_cast<std::size_t>(begin + t)] - first;
      if (p < 0 || p >= visible) {
        weight_change.row(t).setZero();
        continue;
      }
      if (change == TokenChange::remove) {
        softmax_with(z, p, kHidden, sink, numerators, after);
      } else if (key_changes) {
        softmax_with(z, p, zero_key_logit, sink, numerators, after);
      } else {
        after = before;
      }
      if (value_changes) after[p] = 0;
      weight_change.row(t) = (after - before).cast<double>().transpose();
    }
    output_change.noalias() = weight_change.topRows(count) * group.v.middleRows(first, visible);
    errors.segment(begin, count) = output_change.rowwise().squaredNorm();
  }
  return errors;
}

}  // namespace kvreplay
