#pragma once

#include "sim/head_group.hpp"
#include "viewer/questions/ask.hpp"
#include "viewer/questions/job_queue.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvreplay::viewer {

// Queries that read a token, the factors of its cost, and the token that could best replace it. Computed in
// float64, so that a token that takes nearly all of a row still has accurate digits.

/// Weight that one query gives a token, and the error of its output without it.
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

/// Readings of a prompt's token on the window's rows, for one query head (0..G-1) or for all of the group.
/// O(G w T (d + d_v)).
TokenReadings token_readings(const HeadGroup<double>& group, std::optional<Index> query_head, Index token,
                             Index window, JobControl& job);

/// Factors of a token's cost to one row of one query head: the cost is (odds distance)^2.
struct ReadingFactors {
  Index row = 0, query_head = 0;
  double weight = 0;    ///< a
  double odds = 0;      ///< a / (1 - a); infinite where the row reads nothing else
  double distance = 0;  ///< ||v - o||, how unlike all that is read the token's value is
  double cost = 0;      ///< exact_remove
  /// Medians over the tokens that the row sees: a comparison with them shows which factor is unusual.
  double median_odds = 0, median_distance = 0;
};
/// Factors for the given query head or, without one, for the query head to which the token costs most.
/// Nothing if the row does not see the token. O(G T (d + d_v)).
std::optional<ReadingFactors> reading_factors(const HeadGroup<double>& group, std::optional<Index> query_head,
                                              Index row, Index token);

/// A metric of one token beside the head's other tokens.
struct TokenCost {
  TokenMetric metric = TokenMetric::exact_remove;
  double value = 0;
  Index rank = 0, of = 0;  ///< among the candidates, from 1 (the largest) on
  Index dearest = 0;       ///< the token of the largest value
  double largest = 0;      ///< its value
  double share() const { return largest > 0 ? value / largest : 0; }
};
/// Nothing for a token that is no candidate, a metric that the summary lacks, or a value that is NaN.
std::optional<TokenCost> token_cost(const HeadSummary& summary, TokenMetric metric, Index token);

/// token_cost() by every metric that the summary has.
std::vector<TokenCost> token_costs(const HeadSummary& summary, Index token);

/// Smallest budget down to which one policy, or one score alone, keeps the token.
struct KeptDownTo {
  std::string name;   ///< "exact order", "A: snapkv", "h2o"
  std::string about;  ///< for a tooltip
  std::optional<Index>
      least;        ///< the last budget that keeps it, in tokens; empty where none does, or not known
  std::string why;  ///< why it is not known, as one clause
  bool pending = false;
};

/// Content of the card of the selected token in the selected head, as far as it is known. Drawing thread
/// only.
class TokenCard {
 public:
  /// Queries that are named, and dearest rows whose share is told.
  static constexpr std::size_t kReaders = 4, kDearest = 5;

  /// Asks for it; of no token there is nothing to ask.
  void ask(PanelContext& context);

  std::optional<Index> token;     ///< the selected one
  std::string whose;              ///< "sum of 2 query heads"; empty where the group is one head
  std::optional<TokenCost> cost;  ///< exact_remove
  std::optional<TokenCost> nats;  ///< exact_loss, where the dump has gradients
  std::string why_no_dump;        ///< of a result folder without one: why readers and budgets are not known
  std::shared_ptr<const TokenReadings> readings;
  std::optional<ReadingFactors> factors;  ///< of the selected query where it sees the token, else the dearest
  bool of_selected_row = false;
  bool row_is_blind = false;  ///< the selected query does not see the token
  Index prompt = 0;           ///< l
  /// The exact order, A and B, and the usual policies, by the sum over the group: a cache is the group's.
  std::vector<KeptDownTo> policies;
  std::vector<KeptDownTo> scores;  ///< each score alone: nothing pinned or pooled
  bool pending = false;
  std::vector<std::string> errors;

  /// Rows of csv(): what, row, token, quantity, value, share.
  struct Line {
    std::string kind;
    std::optional<Index> row, token;
    std::string quantity;
    double value = 0;
    std::optional<double> share = {};
  };
  std::vector<Line> lines() const;

 private:
  void ask_costs(PanelContext& context);
  void ask_readings(PanelContext& context);
  void ask_budgets(PanelContext& context);
  /// Takes the state of an answer; whether it is there.
  template <class R>
  bool take(const Answer<R>& answer);
};

}  // namespace kvreplay::viewer
