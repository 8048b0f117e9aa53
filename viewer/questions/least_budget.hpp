#pragma once

#include "data/dump.hpp"

#include <cstddef>
#include <functional>
#include <optional>

namespace kvreplay::viewer {

/// How far a budget falls until a token is evicted.
struct LeastBudget {
  std::optional<Index> tokens;  ///< the last budget that keeps it, 1..l; empty where not even l does
};
/// Down from l: `kept(k)` says whether a budget of k tokens keeps it. Looks at about so many budgets, evenly
/// in log k, then halves the gap before the first that does not.
LeastBudget least_budget(Index l, std::size_t looks, const std::function<bool(Index)>& kept);

}  // namespace kvreplay::viewer
