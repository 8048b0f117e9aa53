#pragma once

#include "analysis/results/schema.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvreplay {

/// The k of the five cuts among n candidates: 40 and 1, 5, 10, 20 % (max(1, round(x n / 100))); nothing where
/// k > n.
inline constexpr std::size_t kCuts = 5;
std::array<std::optional<std::size_t>, kCuts> agreement_cuts(std::size_t n);

/// True if a metric of agreement is defined for n candidates, the last `reserve` of which are reserved.
/// Recall and mass need reserve < k <= n; rel_l1 needs equal units.
bool figure_applies(AgreementFigure figure, std::size_t n, bool same_unit, std::size_t reserve = 0);

/// One metric over the compared candidates, ranked once for any number of pairs. Refers to `values`, which
/// must outlive it.
class Ranking {
 public:
  explicit Ranking(std::span<const double> values);

  std::span<const double> values() const { return values_; }
  std::size_t size() const { return values_.size(); }
  /// Positions from the largest value down, ties by position: [n].
  const std::vector<std::int32_t>& order() const { return order_; }
  /// The inverse of order(): place()[p] is how many come before p.
  const std::vector<std::int32_t>& place() const { return place_; }
  /// Twice (mid-rank - mean rank), an integer for every tie: [n].
  const std::vector<std::int32_t>& centred_ranks() const { return centred_; }
  /// Sum of squares of centred_ranks(); 0 where all values are equal.
  std::int64_t rank_variance() const { return variance_; }
  /// Sum of the values.
  double total() const { return total_; }

 private:
  std::span<const double> values_;
  std::vector<std::int32_t> order_, place_, centred_;
  std::int64_t variance_ = 0;
  double total_ = 0;
};

/// One value a figure; those that do not apply are nan and are not exported, those that are undefined (no
/// variance, no mass) are nan and are.
struct Agreement {
  std::array<double, kAgreementFigures.size()> values;
  double operator[](AgreementFigure f) const { return values[static_cast<std::size_t>(f)]; }
};

/// Both rankings are over the same candidates. O(n) a pair.
Agreement agreement(const Ranking& score, const Ranking& reference, bool same_unit);

/// agreement() of the pair, `plain`, with the last `reserve` candidates reserved: they are allocated inside
/// the k of the score's top-k, beside its k - reserve best of the others; the reference's stays as it is
/// (OBCache fig. 2b). Only recall and mass depend on it.
Agreement with_reserve(Agreement plain, const Ranking& score, const Ranking& reference, std::size_t reserve);

/// For a single pair.
Agreement agreement(std::span<const double> score, std::span<const double> reference, bool same_unit);

/// Neumaier's compensated sum, in the order of the values.
double compensated_sum(std::span<const double> values);

}  // namespace kvreplay
