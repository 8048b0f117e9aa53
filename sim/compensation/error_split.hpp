#pragma once

#include "sim/compensation/compensate.hpp"

#include <optional>

namespace kvreplay {

/// Origin of the error of a compensated cache, on any rows: sums of squares over rows and query heads. o' - o
/// = (selection) + (mass) + (values), each a vector. `bound` is the least error that any values could reach
/// on these very rows with the kept keys and biases.
struct ErrorSplit {
  double full_sq = 0;    ///< of o
  double change_sq = 0;  ///< of o' - o
  double selection = 0;  ///< what is kept as it was, with the whole prompt's mass, less o
  double mass = 0;       ///< with the mass and the biases that it has, less that
  double values = 0;     ///< with the values that it has, less that
  double bound = 0;      ///< nan where rows do not outnumber tokens
  double plain = 0;      ///< of what is kept, as it was, less o: without biases or other values
  double weighted = 0;   ///< of (selection) + (mass)
};

/// The split for a cache that keeps the tokens' own keys. Cost: that of a few products of n x m and m x d_v,
/// and of a Cholesky factor of m for the bound.
template <class T>
ErrorSplit error_split(const RowLogits<T>& rows, const HeadGroup<T>& group, const Compensated& held,
                       Workers& workers);

/// The split over rows in two parts; `bound` where it is known.
template <class T>
ErrorSplit error_split(const ReferenceRows<T>& rows, const HeadGroup<T>& group, const Compensated& held,
                       Workers& workers, std::optional<double> bound = {});

}  // namespace kvreplay
