#pragma once

#include "analysis/findings/findings.hpp"
#include "data/dump.hpp"

#include <optional>
#include <string>

// What may be worth knowing, table by table; nothing where a table does not hold what it takes.

namespace kvreplay {

std::optional<Finding> misranked_head(const FigureTables& tables, const TokenSource& tokens);
std::optional<Finding> missing_future(const FigureTable& agreement);
std::optional<Finding> best_policy(const FigureTables& tables);
std::optional<Finding> heaviest_layer(const FigureTables& tables);
std::optional<Finding> shared_budget(const FigureTable& budgets);
std::optional<Finding> pruned_channels(const FigureTable& channels);
std::optional<Finding> ruled_sum(const FigureTables& tables, const TokenSource& tokens);

/// Of the ratios of channels pruned that a table has the one in the middle, of an even number the smaller of
/// the two; nothing where it has none.
std::optional<std::string> middle_ratio(const FigureTable& channels, const Wanted& common);

/// Of the prompt's keys. Cost: reads them once.
KeyReach key_reach(const Dump& dump, Index layer, Index kv_head);

/// "2.1", "14"
std::string factor_text(double factor);
/// "0.0287"
std::string value_text(double value);

/// The kept sets that findings are about: after the prompt, as the papers have it, at the middle budget (of
/// an even number the smaller of the two), on the decoding steps where there are any. What fixes them but
/// the policy and the metric; empty where there are none.
struct MiddleCase {
  std::string rows, phase, semantics, budget;
  Wanted wanted() const {
    return {{"rows", rows}, {"phase", phase}, {"semantics", semantics}, {"budget", budget}};
  }
};
std::optional<MiddleCase> middle_case(const FigureTable& evictions, Index l);
/// In it the lowest output error of what can be run, and of the oracles; null where there is none.
struct BestOf {
  const FigureEntry *runs = nullptr, *oracle = nullptr;
};
BestOf best_of(const FigureTable& evictions, const MiddleCase& at);

}  // namespace kvreplay
