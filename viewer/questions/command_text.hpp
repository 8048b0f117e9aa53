#pragma once

#include "analysis/options/option.hpp"
#include "viewer/questions/state.hpp"
#include "viewer/questions/user_scores.hpp"
#include "viewer/questions/what_if.hpp"

#include <string>
#include <vector>

// Shell commands that reproduce the dashboard's content.

namespace kvreplay::viewer {

/// " --name value" for each option whose value is not that of `usual`, in their order; without `usual` for
/// all that have one.
std::string options_text(const BoundOptions& given, const BoundOptions& usual);
/// Options of `evict`, budgets as what is kept. " --policy snapkv --keep 20%".
std::string evict_options_text(EvictionOptions options);
/// Options that say a setting of What if; `score` is the user's that it names, else null. Without the leading
/// space.
std::string evict_options_text(const WhatIfSettings& settings, const UserScore* score);

/// Settings A and B, one line each: "A: --policy snapkv --keep 20%".
std::vector<std::string> settings_lines(const AppState& state);

/// The command that measures a setting of What if over all heads of the dump. Throws OptionError where the
/// setting names no policy.
std::string evict_command(const Dump& dump, const WhatIfSettings& settings, const UserScore* score,
                          const std::string& out);

}  // namespace kvreplay::viewer
