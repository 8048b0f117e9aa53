#pragma once

#include "sim/head_group.hpp"
#include "viewer/questions/desk.hpp"

#include <optional>
#include <vector>

// Who reads a token, what makes it dear, and which token could stand in for it: in float64, so that a token
// that takes nearly all of a row still has its digits.

namespace kvreplay::viewer {

/// What one query gives a token, and what its output loses without it.
struct TokenReading {
  Index row = 0;      ///< position of the query
  double weight = 0;  ///< mean over the query heads
  double cost = 0;    ///< exact_remove of this row alone, summed over the query heads
};

/// The token whose key and value, in the place of this one's, change the outputs least.
struct Substitute {
  Index token = 0;
  double cost = 0;  ///< squared change of the outputs, over the same rows and query heads
};

struct TokenReadings {
  Index window = 0;                ///< rows of the window, those that do not see the token among them
  std::vector<TokenReading> rows;  ///< those that see it, by position
  /// Among the prompt's tokens that all of these rows see; none where there is no other.
  std::optional<Substitute> substitute;

  double cost() const;  ///< of all rows
  /// The `most` rows of largest weight or cost, the largest first; of equal ones the earlier.
  std::vector<TokenReading> largest(double TokenReading::*figure, std::size_t most) const;
  /// The share of the cost that lies in the `most` dearest rows; NaN where there is no cost.
  double share_of_dearest(std::size_t most) const;
};
inline std::size_t bytes_of(const TokenReadings& readings) { return bytes_with(readings, readings.rows); }

/// Of a prompt's token on the window's rows; of one query head (0..G-1), or of all of the group.
/// O(G w T (d + d_v)).
TokenReadings token_readings(const HeadGroup<double>& group, std::optional<Index> query_head, Index token,
                             Index window, JobControl& job);

/// What makes a token dear to one row of one query head: the cost is (odds distance)^2.
struct ReadingFactors {
  Index row = 0, query_head = 0;
  double weight = 0;    ///< a
  double odds = 0;      ///< a / (1 - a); infinite where the row reads nothing else
  double distance = 0;  ///< ||v - o||, how unlike all that is read the token's value is
  double cost = 0;      ///< exact_remove
  /// Medians over the tokens that the row sees: what of the two is out of the ordinary.
  double median_odds = 0, median_distance = 0;
};
/// Of the query head, or of the one to which the token is dearest; nothing where the row does not see it.
/// O(G T (d + d_v)).
std::optional<ReadingFactors> reading_factors(const HeadGroup<double>& group, std::optional<Index> query_head,
                                              Index row, Index token);

}  // namespace kvreplay::viewer
