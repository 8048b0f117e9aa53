#include "viewer/questions/command_text.hpp"

#include "analysis/results/csv.hpp"
#include "data/console.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay::viewer {
namespace {

/// A share that is read as this very ratio, else nothing.
std::optional<std::string> kept_share(double sigma) {
  const std::string text = shortest(std::round((1 - sigma) * 1e6) / 1e4) + "%";
  if (!OptionValue<Budget>::complaint(evict_option::keep, text).empty()) return {};
  const Budget read = OptionValue<Budget>::parse(evict_option::keep, text);
  return !read.tokens && read.sigma == sigma ? std::optional(text) : std::nullopt;
}

std::string budget_options(const std::vector<Budget>& budgets) {
  std::vector<std::string> kept, ratios;
  for (const Budget& budget : budgets) {
    const auto share =
        budget.tokens ? std::optional(std::to_string(*budget.tokens)) : kept_share(budget.sigma);
    if (share) kept.push_back(*share);
    if (!budget.tokens) ratios.push_back(shortest(budget.sigma));
  }
  const bool all = kept.size() == budgets.size();
  return fmt::format(" --{} {}", (all ? evict_option::keep : evict_option::sigma).name,
                     fmt::join(all ? kept : ratios, ","));
}

}  // namespace

std::string options_text(const BoundOptions& given, const BoundOptions& usual) {
  std::string text;
  for (const BoundOption& option : given) {
    const auto same = std::find_if(usual.begin(), usual.end(), [&](const BoundOption& other) {
      return other.facts->name == option.facts->name;
    });
    if (option.flag()) {
      const auto is_set = [](const BoundOption& flag) { return flag.write && flag.write() == Json(true); };
      if (is_set(option) && (same == usual.end() || !is_set(*same)))
        text += fmt::format(" --{}", option.facts->name);
      continue;
    }
    if (option.initial.empty() || (same != usual.end() && same->initial == option.initial)) continue;
    text += fmt::format(" --{}", option.facts->name);
    text.append(" ").append(shell_word(option.initial));
  }
  return text;
}

std::string evict_options_text(EvictionOptions options) {
  EvictionOptions usual;
  BoundOptions given = bound(options);
  const auto is_budget = [](const BoundOption& option) {
    return option.facts == &evict_option::sigma || option.facts == &evict_option::keep ||
           option.facts == &evict_option::budget;
  };
  const auto is_policy = [](const BoundOption& option) { return option.facts == &evict_option::policy; };
  BoundOptions policies;
  std::copy_if(given.begin(), given.end(), std::back_inserter(policies), is_policy);
  std::erase_if(given, [&](const BoundOption& option) { return is_budget(option) || is_policy(option); });
  return options_text(policies, {}) + budget_options(options.budgets) + options_text(given, bound(usual));
}

std::string evict_options_text(const WhatIfSettings& settings, const UserScore* score) {
  try {
    return evict_options_text(evict_options_of(settings, score)).substr(1);
  } catch (const InputError&) {
    return settings.policy();  // no policy that there is
  }
}

std::vector<std::string> settings_lines(const AppState& state) {
  const auto line = [&](const char* name, const WhatIfSettings& settings) {
    return fmt::format("{}: {}", name,
                       evict_options_text(settings, find_score(state.scores, settings.score)));
  };
  const auto [a, b] = state.settings();
  return {line("A", a), line("B", b)};
}

std::string evict_command(const Dump& dump, const WhatIfSettings& settings, const UserScore* score,
                          const std::string& out) {
  return shell_line({"kvreplay", "evict", dump.folder().string(), "--out", out}) +
         evict_options_text(evict_options_of(settings, score));
}

}  // namespace kvreplay::viewer
