#pragma once

#include "sim/cache/cache.hpp"
#include "sim/compensation/compensation_facts.hpp"
#include "sim/least_squares/normal_equations.hpp"
#include "sim/least_squares/reference_rows.hpp"

#include <array>
#include <limits>
#include <optional>
#include <vector>

namespace kvreplay {

/// Candidates for lambda and mu, as multiples of the mean of the diagonal that they are added to.
inline constexpr std::array kRidges{1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0};

/// Compensated cache of a prompt: m tokens.
struct Compensated {
  std::vector<Index>
      tokens;  ///< [m] positions, ascending; a slot that is no token has the place of an evicted one
  Matrix<double> values;  ///< [m, d_v]
  Vector<double> bias;    ///< [m], on the logits; empty for none
  Matrix<double> keys;    ///< [m, d]; empty: the tokens' own
  /// Chosen ridges, as multiples of the mean diagonal, as kRidges; NaN where nothing was fitted.
  double lambda = std::numeric_limits<double>::quiet_NaN(), mu = lambda;
};

/// Ridges in place of those that the held-out rows choose.
struct FixedRidges {
  std::optional<double> lambda, mu;
};

/// Compensations of one kept set by several methods (sim/compensation/COMPENSATION.md), with their common
/// work done once. In float64 from weights in T. Cost of a fit, for n rows and m tokens: n (m + d_v)^2 flops
/// for the products of all rows, as much again for mass, and a Cholesky factor, m^3 / 3, for each of kRidges,
/// for mass a few. Memory: 4 m^2 numbers, and as many for a factor while it lasts.
template <class T>
class Compensations {
 public:
  /// `reference`: the group's rows, null where no method fits. All arguments must outlive this object.
  Compensations(const HeadGroup<T>& group, const KeptSet& kept, const ReferenceRows<T>* reference,
                Workers& workers, const FixedRidges& fixed = {});

  /// Cache under a method that does not merge. An empty kept set stays empty, a whole prompt unchanged.
  Compensated with(Compensation method);
  /// Smallest squared change of the outputs on the reference rows that any values could reach with the biases
  /// of `method`; NaN where rows do not outnumber tokens.
  double bound(Compensation method);

 private:
  struct OfValues {
    NormalEquations fitted, held_out, all;
  };

  bool fits() const;
  const Vector<double>& mass();
  const OfValues& equations(bool biased);
  Vector<double> weight(const NormalEquations& equations, double ridge, const Vector<double>& near) const;

  const HeadGroup<T>& group_;
  const KeptSet& kept_;
  const ReferenceRows<T>* reference_;
  Workers& workers_;
  FixedRidges fixed_;
  std::vector<Index> tokens_;
  Matrix<double> own_;             // values of the tokens
  Vector<double> mass_, no_mass_;  // weights; the latter stays empty
  double lambda_ = std::numeric_limits<double>::quiet_NaN();
  std::array<std::optional<OfValues>, 2> equations_;  // without and with mass_
};

/// One method alone.
template <class T>
Compensated compensated(const HeadGroup<T>& group, const KeptSet& kept, Compensation method,
                        const ReferenceRows<T>* reference, Workers& workers, const FixedRidges& fixed = {}) {
  return Compensations<T>(group, kept, reference, workers, fixed).with(method);
}

/// Result of merging a kept set's evicted tokens into its kept ones. A method without the given semantics
/// follows its paper, or else kvpress.
Compensated merged(const HeadGroup<double>& group, const KeptSet& kept, Merging method, Semantics semantics,
                   const WindowAttention& attention);

/// Reference for methods that fit, with given ridges: brute force in float64 on all of `rows`.
Compensated compensated_reference(const HeadGroup<double>& group, const KeptSet& kept, Compensation method,
                                  const QueryRows<double>& rows, double lambda, double mu);

/// Weights of the rows over the whole prompt by definition, [n, l].
Matrix<double> reference_weights(const HeadGroup<double>& group, const QueryRows<double>& rows);

/// A compensated prompt as a cache of the group.
template <class T>
Cache<T> compensated_cache(const HeadGroup<T>& group, const Compensated& held);

/// Bytes of a compensated cache: for each token a key, a value and, where there are biases, a float.
double compensated_bytes(const Compensated& held, Index d);

}  // namespace kvreplay
