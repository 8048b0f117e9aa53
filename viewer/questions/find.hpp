#pragma once

#include "data/dump.hpp"
#include "viewer/questions/state.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

// Search in a run: the typed words and the places, metrics and policies that they lead to.

namespace kvreplay::viewer {

/// "L3 H1", "layer 3 head 1", "3.1", "token 379", "379": what is not said stays as it is. As typed `layer` is
/// the model's number; of a FindEntry the dump's.
struct PlaceQuery {
  std::optional<Index> layer, kv_head, token;
  bool operator==(const PlaceQuery&) const = default;
};
/// Upper and lower case are one; nothing where no place is typed.
std::optional<PlaceQuery> place_query(std::string_view typed);

/// One thing that typed words may mean.
struct FindEntry {
  std::string title, hint;  ///< a line
  /// Target: a place to go to, a metric or a policy to be set.
  std::variant<PlaceQuery, TokenMetric, EvictionBase> what;
  bool whole = false;  ///< its name is what was typed
};
struct FindAnswer {
  std::vector<FindEntry> entries;  ///< the likeliest first
  std::string error;               ///< one line: why a place is none of this run
};
/// `metrics` are those that the run has of its heads.
FindAnswer find_answer(std::string_view typed, const DumpShape& shape, const LayerNumbers& layers,
                       const MetricSet& metrics);

/// Goes to a place, compares by a metric, or sets setting A to a policy.
void follow(const FindEntry& entry, AppState& state);

}  // namespace kvreplay::viewer
