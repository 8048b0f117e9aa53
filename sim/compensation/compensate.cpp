#include "sim/compensation/compensate.hpp"

#include "sim/least_squares/cholesky.hpp"
#include "sim/least_squares/normal_equations.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvreplay {
namespace {

/// Lower bound of a token's weight: no bias is below its logarithm.
constexpr double kLeastWeight = 1e-3;

/// The ridge of least error, the larger one if two are equal: error_of(ridge) is called for the largest ridge
/// first.
template <class ErrorOf>
double best_ridge(const ErrorOf& error_of) {
  double best = kRidges.back(), least = std::numeric_limits<double>::infinity();
  for (auto ridge = kRidges.rbegin(); ridge != kRidges.rend(); ++ridge)
    if (const double error = error_of(*ridge); error < least) {
      least = error;
      best = *ridge;
    }
  return best;
}

/// The mean diagonal, that ridges are multiples of; 1 where no row sees a kept token, and no ridge changes
/// anything.
double scale_of(const NormalEquations& equations) {
  const double mean = equations.mean_diagonal();
  return mean > 0 ? mean : 1;
}

/// The ridge regression of R on X.
Matrix<double> regression(const NormalEquations& equations, double ridge, Workers& workers) {
  const Cholesky factor(equations.XX, workers, ridge * scale_of(equations));
  if (!factor.definite()) return Matrix<double>::Zero(equations.XR.rows(), equations.XR.cols());
  return factor.solve(equations.XR, workers);
}

/// The slot of what `kept` lacks, at the place of an evicted token that as many rows see as can: the first
/// one, or the last where rows see recent tokens only.
template <class T>
void add_mean(const HeadGroup<T>& group, const KeptSet& kept, Compensated& held) {
  const std::vector<Index> evicted = evicted_positions(kept, group.first_held());
  if (evicted.empty()) return;
  const Index m = std::ssize(held.tokens);
  const Index place = group.rule.sliding_window ? evicted.back() : evicted.front();
  const auto at = std::lower_bound(held.tokens.begin(), held.tokens.end(), place) - held.tokens.begin();
  const auto mean_of = [&](const HeadMatrix<T>& x) {
    return x(evicted, Eigen::all).template cast<double>().colwise().mean().eval();
  };
  const auto insert = [&](const Matrix<double>& rows, const auto& row) {
    Matrix<double> more(m + 1, rows.cols());
    more << rows.topRows(at), row, rows.bottomRows(m - at);
    return more;
  };
  held.keys = insert(group.k(held.tokens, Eigen::all).template cast<double>(), mean_of(group.k));
  held.values = insert(held.values, mean_of(group.v));
  held.bias = Vector<double>::Zero(m + 1);
  held.bias[at] = std::log(static_cast<double>(evicted.size()));
  held.tokens.insert(held.tokens.begin() + at, place);
}

}  // namespace

template <class T>
Compensations<T>::Compensations(const HeadGroup<T>& group, const KeptSet& kept,
                                const ReferenceRows<T>* reference, Workers& workers, const FixedRidges& fixed)
    : group_(group),
      kept_(kept),
      reference_(reference),
      workers_(workers),
      fixed_(fixed),
      tokens_(positions(kept)),
      own_(group.v(tokens_, Eigen::all).template cast<double>()) {}

template <class T>
bool Compensations<T>::fits() const {
  const auto m = std::ssize(tokens_);
  return reference_ != nullptr && reference_->count() > 0 && m > 0 && m < group_.held();
}

/// argmin over w >= 0 of |X w - R|^2 + ridge |w - 1|^2, [m]; `near`: of another ridge, if any.
template <class T>
Vector<double> Compensations<T>::weight(const NormalEquations& equations, double ridge,
                                        const Vector<double>& near) const {
  const double lambda = ridge * scale_of(equations);
  const Vector<double> f = equations.XR.col(0).array() + lambda;
  return nonnegative_least_squares(equations.XX, lambda, f, near, workers_);
}

template <class T>
const Vector<double>& Compensations<T>::mass() {
  if (mass_.size() > 0) return mass_;
  const RowLogits<T>& judging = reference_->held_out.n > 0 ? reference_->held_out : reference_->fitted;
  NormalEquations equations = mass_equations(reference_->fitted, tokens_, workers_);
  Vector<double> last;
  lambda_ = fixed_.lambda ? *fixed_.lambda : best_ridge([&](double ridge) {
    last = weight(equations, ridge, last);
    return output_change_sq(judging, tokens_, last.cwiseMax(kLeastWeight), own_, workers_);
  });
  if (reference_->held_out.n > 0) equations += mass_equations(reference_->held_out, tokens_, workers_);
  return mass_ = weight(equations, lambda_, last).cwiseMax(kLeastWeight);
}

template <class T>
const typename Compensations<T>::OfValues& Compensations<T>::equations(bool biased) {
  std::optional<OfValues>& found = equations_[biased ? 1 : 0];
  if (found) return *found;
  const auto of_rows = [&](const RowLogits<T>& rows) {
    return value_equations(rows, tokens_, biased ? mass() : no_mass_, own_, workers_);
  };
  found = {of_rows(reference_->fitted), of_rows(reference_->held_out), {}};
  found->all = found->fitted;
  found->all += found->held_out;
  return *found;
}

template <class T>
Compensated Compensations<T>::with(Compensation method) {
  const CompensationFacts& facts = kCompensations[method];
  Compensated held{tokens_, own_, {}, {}};
  if (facts.slot) add_mean(group_, kept_, held);
  if (!facts.fits() || !fits()) return held;
  if (facts.fits_mass) {
    held.bias = mass().array().log();
    held.lambda = lambda_;
  }
  if (!facts.fits_values) return held;
  const OfValues& of = equations(facts.fits_mass);
  const bool chooses = reference_->held_out.n > 0;
  held.mu = fixed_.mu ? *fixed_.mu
            : chooses ? best_ridge([&](double ridge) {
                return of.held_out.error(regression(of.fitted, ridge, workers_), workers_);
              })
                      : 1.0;
  held.values += regression(of.all, held.mu, workers_);
  return held;
}

template <class T>
double Compensations<T>::bound(Compensation method) {
  if (reference_->count() <= std::ssize(tokens_)) return std::numeric_limits<double>::quiet_NaN();
  return equations(kCompensations[method].fits_mass && fits()).all.least_error(workers_);
}

template class Compensations<float>;
template class Compensations<double>;

Compensated merged(const HeadGroup<double>& group, const KeptSet& kept, Merging method, Semantics semantics,
                   const WindowAttention& attention) {
  const MergingFacts& facts = kMergings[method];
  const Semantics own = has_semantics(method, semantics) ? semantics
                        : facts.paper                    ? Semantics::paper
                                                         : Semantics::kvpress;
  const MergedCache cache = merged_cache(group, kept, method, own, attention);
  Compensated held;
  held.tokens = positions(kept);
  held.values = cache.v(held.tokens, Eigen::all);
  if (facts.changes_keys) held.keys = cache.k(held.tokens, Eigen::all);
  if (facts.biased) held.bias = cache.bias(held.tokens);
  return held;
}

template <class T>
Cache<T> compensated_cache(const HeadGroup<T>& group, const Compensated& held) {
  Cache<T> cache{KeptSet(static_cast<std::size_t>(group.l), 0)};
  cache.v = group.v;
  if (held.keys.size() > 0) cache.k = group.k;
  if (held.bias.size() > 0) cache.bias = Vector<T>::Zero(group.l);
  for (Index j = 0; j < std::ssize(held.tokens); ++j) {
    const Index p = held.tokens[j];
    cache.kept[p] = 1;
    cache.v.row(p) = held.values.row(j).template cast<T>();
    if (held.bias.size() > 0) cache.bias[p] = static_cast<T>(held.bias[j]);
    if (held.keys.size() > 0) cache.k.row(p) = held.keys.row(j).template cast<T>();
  }
  std::fill_n(cache.kept.begin(), group.first_held(), std::uint8_t{1});
  return cache;
}

double compensated_bytes(const Compensated& held, Index d) {
  constexpr Index kBias = 4;
  const Index token = (d + held.values.cols()) * kElementBytes + (held.bias.size() > 0 ? kBias : 0);
  return static_cast<double>(std::ssize(held.tokens) * token);
}

template Cache<float> compensated_cache(const HeadGroup<float>&, const Compensated&);
template Cache<double> compensated_cache(const HeadGroup<double>&, const Compensated&);

}  // namespace kvreplay
