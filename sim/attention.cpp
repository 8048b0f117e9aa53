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

/// Largest shift of the row's largest logit before the numerators are computed again with another shift. The
/// limit is half of the exponent range: no numerator that counts vanishes, and their sum does not overflow.
constexpr double kShiftRange = 0.69 * std::numeric_limits<Wide>::max_exponent / 2;

/// Softmax of a row of logits and a sink column: weight m is e[m] * inverse_sum.
class Softmax {
 public:
  Softmax(const Vector<double>& z, double sink) : z_(z), sink_(sink), own_shift_(shift_for(z)), e_(z.size()) {
    replace(-1, 0.0);
  }

  /// Starts again from z with z[p] replaced by `logit` (-1: none). The other numerators are the same numbers
  /// as before, unless the largest logit moved far; the sum is always taken anew.
  void replace(Index p, double logit) {
    if (p_ >= 0) e_[p_] = numerator(z_[p_]);
    p_ = p;
    const double z_p = p >= 0 ? std::exchange(z_[p], logit) : 0.0;
    const double largest = shift_for(z_);
    if (p >= 0) z_[p] = z_p;
    const double shift = std::abs(largest - own_shift_) < kShiftRange ? own_shift_ : largest;
    if (shift != shift_) {
      shift_ = shift;
      for (Index m = 0; m < z_.size(); ++m) e_[m] = numerator(z_[m]);
    }
    if (p >= 0) e_[p] = numerator(logit);
    const Wide sum = numerator(sink_) + sum_of_numerators();
    sum_ = sum;
    inverse_sum_ = sum > 0 ? 1 / sum : 0;
  }
  /// 1 where all of the sum is one token's, whatever the rounding of an inverse.
  Wide operator[](Index m) const { return e_[m] == sum_ && sum_ > 0 ? 1 : e_[m] * inverse_sum_; }

 private:
  Wide numerator(double z) const { return std::exp(static_cast<Wide>(z) - shift_); }
  /// The largest logit; 0 where there is nothing to look at, and every numerator is exp(-inf).
  double shift_for(const Vector<double>& z) const {
    const double largest = z.size() > 0 ? std::max(sink_, z.maxCoeff()) : sink_;
    return largest == kHidden ? 0.0 : largest;
  }
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
  double own_shift_;                                         // of the row as it is
  double shift_ = std::numeric_limits<double>::quiet_NaN();  // differs from every shift
  Index p_ = -1;
  WideVector e_;
  Wide sum_ = 0, inverse_sum_ = 0;
};

/// One row's attention, again for every change of a token.
class ChangedRow {
 public:
  ChangedRow(const HeadGroup<double>& group, Index g, Index i)
      : v_(group.v.data() + group.first_visible(i) * group.d_v(),
           group.end_visible(i) - group.first_visible(i), group.d_v()),
        first_(group.first_visible(i)),
        zero_key_logit_(soft_capped(group.rule, 0.0)),
        softmax_(attention_logits(group, g, i).z.segment(first_, v_.rows()), group.sink(g)),
        before_(v_.rows()) {
    for (Index m = 0; m < v_.rows(); ++m) before_[m] = softmax_[m];
  }

  using TokenAndChange = std::pair<Index, TokenChange>;

  /// The change of o_i is (weights after - weights before) V, one row a token; a value that becomes 0 is the
  /// same as its weight becoming 0 after the softmax. Tokens are stacked in blocks, so that memory stays
  /// small and the products with V are those of matrices.
  Vector<double> errors(const std::vector<TokenAndChange>& changed) {
    constexpr Index kBlock = 64;
    const Index n = std::ssize(changed);
    Vector<double> squares(n);
    Matrix<double> weight_change(std::min(n, kBlock), v_.rows()), output_change;
    for (Index begin = 0; begin < n; begin += kBlock) {
      const Index count = std::min(kBlock, n - begin);
      for (Index t = 0; t < count; ++t) {
        const auto [p, change] = changed[begin + t];
        weight_change.row(t) = weights_changed(change, p - first_).transpose();
      }
      output_change.noalias() = weight_change.topRows(count) * v_;
      squares.segment(begin, count) = output_change.rowwise().squaredNorm();
    }
    return squares;
  }

 private:
  /// Weights after less weights before, of the p-th visible token's change.
  Vector<double> weights_changed(TokenChange change, Index p) {
    Vector<double> difference = Vector<double>::Zero(v_.rows());
    if (p < 0 || p >= v_.rows()) return difference;
    if (change != TokenChange::zero_value) {
      softmax_.replace(p, change == TokenChange::remove ? kHidden : zero_key_logit_);
      for (Index m = 0; m < v_.rows(); ++m) difference[m] = static_cast<double>(softmax_[m] - before_[m]);
    }
    if (change == TokenChange::zero_value || change == TokenChange::zero_key_and_value)
      difference[p] = static_cast<double>(-before_[p]);
    return difference;
  }

  Eigen::Map<const Matrix<double>> v_;  // of the visible tokens
  Index first_;
  double zero_key_logit_;
  Softmax softmax_;
  WideVector before_;
};

}  // namespace

LogitRow attention_logits(const HeadGroup<double>& group, Index g, Index i) {
  return attention_logits(group, g, i, group.k);
}

LogitRow attention_logits(const HeadGroup<double>& group, Index g, Index i,
                          const Eigen::Ref<const Matrix<double>>& keys) {
  const auto query = group.q[g].row(i - group.first_query());
  LogitRow row;
  row.raw.setConstant(group.T_all(), kHidden);
  row.z = row.raw;
  for (Index p = group.first_visible(i); p < group.end_visible(i); ++p) {
    row.raw[p] = group.rule.scale * query.dot(keys.row(p));
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

Vector<double> repeat_weights(const HeadGroup<double>& group, Index g, Index r) {
  const auto position = [&](Index p) { return group.position.empty() ? p : group.position[p]; };
  Vector<double> z = Vector<double>::Constant(group.l, -std::numeric_limits<double>::infinity());
  for (Index p = 0; p < group.l; ++p) {
    const Index behind = position(group.l - 1) + 1 + r - position(p);
    if (group.rule.sliding_window && behind >= *group.rule.sliding_window) continue;
    const double raw = group.rule.scale * group.q_ref[g].row(r).dot(group.k.row(p));
    z[p] = group.rule.softcap ? *group.rule.softcap * std::tanh(raw / *group.rule.softcap) : raw;
  }
  return attention_weights(group, g, z);
}

Vector<double> attention_output(const HeadGroup<double>& group, Index g, Index i) {
  const Index first = group.first_visible(i), visible = group.end_visible(i) - first;
  const Vector<double> z = attention_logits(group, g, i).z.segment(first, visible);
  return group.v.middleRows(first, visible).transpose() * attention_weights(group, g, z);
}

std::vector<Vector<double>> brute_force_errors(const HeadGroup<double>& group, Index g, Index i,
                                               const std::vector<ChangedTokens>& changes) {
  std::vector<ChangedRow::TokenAndChange> all;
  for (const ChangedTokens& changed : changes)
    for (const Index p : changed.tokens) all.emplace_back(p, changed.change);
  const Vector<double> together = ChangedRow(group, g, i).errors(all);
  std::vector<Vector<double>> errors;
  Index begin = 0;
  for (const ChangedTokens& changed : changes) {
    errors.emplace_back(together.segment(begin, std::ssize(changed.tokens)));
    begin += errors.back().size();
  }
  return errors;
}

Vector<double> brute_force_errors(const HeadGroup<double>& group, Index g, Index i, TokenChange change,
                                  const std::vector<Index>& tokens) {
  return brute_force_errors(group, g, i, {{change, tokens}}).front();
}

}  // namespace kvreplay
