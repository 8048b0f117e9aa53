#pragma once

#include "viewer/model/find_query.hpp"
#include "viewer/work/head_figures.hpp"
#include "viewer/work/state.hpp"

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

// What is typed to find something, against a run: what it leads to.

namespace kvreplay::viewer {

struct HeadCondition {
  HeadFigure figure;
  WhereQuery query;
};
struct TokenCondition {
  TokenMetric metric = TokenMetric::attn;
  WhereQuery query;
};

/// One thing that typed words may mean.
struct FindEntry {
  std::string title, hint;  ///< a line
  /// Where to go; what to look for; a metric or a policy to be set.
  std::variant<PlaceQuery, HeadCondition, TokenCondition, TokenMetric, EvictionBase> what;
};
struct FindAnswer {
  std::vector<FindEntry> entries;  ///< the likeliest first
  std::string error;               ///< one line: why a place or a condition is none of this run
};
/// `metrics` are those that the run has of its heads.
FindAnswer find_answer(std::string_view typed, const DumpShape& shape, const MetricSet& metrics);

/// Goes to a place, compares by a metric, or sets setting A to a policy: what takes no time. False for
/// conditions.
bool follow(const FindEntry& entry, AppState& state);

/// The heads whose value meets the condition, the furthest from its bound first; `heads` are all that are
/// known.
std::vector<std::pair<Index, Index>> heads_where(
    const HeadCondition& condition, const std::vector<std::shared_ptr<const HeadSummary>>& heads);
/// Ascending positions.
std::vector<Index> tokens_where(const TokenCondition& condition, const TokenMetrics& tokens);

}  // namespace kvreplay::viewer
