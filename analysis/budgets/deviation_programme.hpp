#pragma once

#include "analysis/budgets/budget_frame.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace kvreplay {

/// A budget of one head, as its deviation from the head's tangent budget, and its reduced cost (>= 0).
struct Deviation {
  std::int32_t tokens;
  std::int64_t cost;
};

/// Chooses one deviation a head: the cheapest choice whose deviations sum to at most `spare`, each token
/// short of it costing `slack_cost` (> 0), and whose cost is at most `gap` (optimal.hpp, step 4).
class DeviationProgramme {
 public:
  /// `choices`: [heads], each ascending and with (0, 0) among them; refers to them.
  DeviationProgramme(const std::vector<std::vector<Deviation>>& choices, Index spare, std::int64_t slack_cost,
                     std::int64_t gap);

  /// Tokens a head, or nothing where no choice costs `gap` or less.
  std::optional<std::vector<std::int32_t>> solve();

  std::size_t peak_states() const { return peak_states_; }
  std::size_t states() const { return states_; }

 private:
  /// Partial sums over the heads so far, ascending, with the last head's part, for tracing back.
  struct Trace {
    std::vector<std::int32_t> sum, last;
  };
  /// What the heads behind a stage can still add.
  struct Behind {
    std::int64_t up;    ///< least cost of a token more
    std::int64_t down;  ///< least cost of a token less
    Index lowest;       ///< least sum of deviations
  };

  void order_heads();
  bool can_close(std::int64_t sum, std::int64_t cost, const Behind& behind) const;
  void extend(std::size_t stage);

  const std::vector<std::vector<Deviation>>& choices_;
  std::int64_t spare_, slack_cost_, gap_;
  std::vector<std::size_t> heads_;  ///< those with a choice, in the order of the stages
  std::vector<Behind> behind_;      ///< behind_[s]: heads after stage s
  std::vector<std::int32_t> sum_;   ///< the present partial sums, ascending, and their costs
  std::vector<std::int64_t> cost_, scratch_cost_;
  std::vector<std::int32_t> scratch_last_;
  std::vector<Trace> traces_;
  std::size_t peak_states_ = 1, states_ = 0;
};

}  // namespace kvreplay
