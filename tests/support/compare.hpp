#pragma once

#include "sim/head_group.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <string>

namespace kvreplay::test {

/// The allowed distance of a fast twin from the reference. An entry passes if it is within `of_largest` of
/// the largest finite |want| and, where |want| exceeds `floor` times the largest, also within `relative` of
/// its own size.
struct Tolerance {
  double of_largest = 0.0;
  double relative = 0.0;
  double floor = 0.0;
  double tiny = 0.0;  ///< entries that are both at most this small are equal: the type's range ends there
};

/// float64 twin: the two sides add up to some 1e5 rounded terms in different orders (1e-11), and the logits
/// they start from may differ by 1e-13 at |z| = 200. Below 1e-12 of the largest, i.e. 1e-6 in an unsquared
/// error, the reference's own difference of two outputs runs out of digits.
inline constexpr Tolerance kDouble{1e-9, 1e-6, 1e-12, 1e-290};
/// float32 twin on inputs that float32 holds exactly: a logit of 200 is known to 2e-5, its squared weight to
/// 1e-4; single errors add up over d and over the rows. Squares of weights below 1e-15 leave float32's range.
inline constexpr Tolerance kSingle{1e-4, 1e-3, 1e-6, 1e-30};

/// The worst entry of `got` that misses, with how many do, as one line that starts with `label`; empty where
/// all pass. NaN never passes, on either side; an infinity passes only against the same infinity.
std::string mismatch(const std::string& label, const Matrix<double>& want, const Matrix<double>& got,
                     const Tolerance& tolerance);

/// mismatch() of every metric that misses, each on a line of its own; empty where the twins agree.
std::string mismatches(const std::string& label, const TokenMetrics& want, const TokenMetrics& got,
                       const Tolerance& tolerance);

/// The same bytes, NaN and signed zeros included.
bool same_bytes(const Matrix<double>& a, const Matrix<double>& b);

}  // namespace kvreplay::test
