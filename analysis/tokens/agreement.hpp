#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace kvreplay {

/// The figures that say how well a score s follows a reference e over n compared candidates, in the order of
/// export.
///   rel_l1    sum |s - e| / sum e, only where both have one unit
///   spearman  rank correlation, mid-ranks on ties
///   recall@k  |top-k(s) and top-k(e)| / k; ties rank the lower position first
///   mass@k    the share of sum e that top-k(s) holds
enum class Figure {
  rel_l1,
  spearman,
  recall_40,
  recall_1pc,
  recall_5pc,
  recall_10pc,
  recall_20pc,
  mass_40,
  mass_1pc,
  mass_5pc,
  mass_10pc,
  mass_20pc
};
inline constexpr std::size_t kFigures = 12;
/// "rel_l1", "spearman", "recall@40", "recall@1%", ...
std::string_view name_of(Figure figure);

/// The k of the five cuts among n candidates: 40 and 1, 5, 10, 20 % (max(1, round(x n / 100))); nothing where
/// k > n.
inline constexpr std::size_t kCuts = 5;
std::array<std::optional<std::size_t>, kCuts> agreement_cuts(std::size_t n);

/// Whether a figure is there at all among n candidates: not where its k exceeds n, and rel_l1 only between
/// equal units.
bool figure_applies(Figure figure, std::size_t n, bool same_unit);

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
  std::array<double, kFigures> values;
  double operator[](Figure f) const { return values[static_cast<std::size_t>(f)]; }
};

/// Both rankings are over the same candidates. O(n) a pair.
Agreement agreement(const Ranking& score, const Ranking& reference, bool same_unit);

/// For a single pair.
Agreement agreement(std::span<const double> score, std::span<const double> reference, bool same_unit);

/// Neumaier's compensated sum, in the order of the values.
double compensated_sum(std::span<const double> values);

}  // namespace kvreplay
