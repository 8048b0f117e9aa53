#pragma once

#include "analysis/results/comparisons.hpp"

#include <optional>
#include <set>
#include <string>
#include <vector>

// Who does best over the prompts, and how far the others are from it.

namespace kvreplay {

/// The items of one semantics under one setting, each against the best that can be run: of the oracles none
/// is it.
struct Standing {
  const ComparedItems* of = nullptr;
  std::string semantics;
  const ComparedItems::Item* best = nullptr;
  std::vector<Comparison> others;  ///< left: an item, in the items' order; right: the best
};
/// One for each semantics with at least two items; none where no item but oracles has a value. `items` must
/// outlive them.
std::vector<Standing> standings_of(const ComparedItems& items);

/// "h2o loses 1.58 times what snapkv loses [1.28, 1.94], 6 of 6 prompts", and where that tells nothing apart
/// a word of why.
std::string verdict(const Comparison& comparison);
/// "snapkv loses least of 14; not told apart from it: tova, h2o (about 12 prompts would tell tova)"
std::string verdict(const Standing& standing);
/// The items whose names hold one of the user's `names` (snapkv+mine, score:mine), each against the best of
/// the others that can be run.
std::vector<Comparison> own_against_best(const ComparedItems& items, const std::set<std::string>& names);

/// The standings of one figure on one kind of rows in one phase under one semantics: a column a budget.
struct StandingTable {
  std::string title;  ///< "output error over all heads, future rows"
  std::vector<Standing> columns;
  std::vector<std::string> headings;  ///< "kept 20 %"
};
/// Of the main figures of the model, on the future rows where there are any.
std::vector<StandingTable> main_standings(const std::vector<ComparedItems>& all);
/// As text: how many times each item loses what the best one does, and a verdict a budget.
std::string text_of(const StandingTable& table);

/// What a run on one prompt has to say of two methods.
inline constexpr const char* kOnePrompt =
    "one prompt decides nothing between two methods; six dumps of a model tell a ratio of about 1.5 from 1";

}  // namespace kvreplay
