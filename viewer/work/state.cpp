#include "viewer/work/state.hpp"

#include "analysis/tokens/token_options.hpp"
#include "data/error.hpp"

#include <algorithm>
#include <utility>

namespace kvreplay::viewer {

static BoundOptions bound(Comparison& comparison) {
  static constexpr OptionFacts score{.name = "score"}, reference{.name = "reference"},
      window{.name = "window"};
  return {bind_option(score, comparison.score), bind_option(reference, comparison.reference),
          bind_option(window, comparison.window)};
}

/// What is set of all panels by itself.
static BoundOptions bound(SharedSettings& settings) {
  static constexpr OptionFacts show_b{.name = "show-b"}, show_kept{.name = "show-kept"},
      budget_line{.name = "budget-line"};
  return {bind_option(show_b, settings.show_b), bind_option(show_kept, settings.show_kept),
          bind_option(budget_line, settings.budget_line)};
}

WhatIfSettings SharedSettings::second_setting() {
  WhatIfSettings settings;
  settings.score = name_of(TokenMetric::joint);
  return settings;
}

nlohmann::json to_json(const SharedSettings& settings) {
  SharedSettings copy = settings;
  nlohmann::json json = kvreplay::to_json(bound(copy));
  json["comparison"] = kvreplay::to_json(bound(copy.comparison));
  json["a"] = to_json(settings.setting_a);
  json["b"] = to_json(settings.setting_b);
  return json;
}

void read_settings(const nlohmann::json& json, SharedSettings& into) {
  if (!json.is_object()) return;
  // One that cannot be read must not cost the others.
  const auto attempt = [](const auto& read) {
    try {
      read();
    } catch (const InputError&) {
    }
  };
  const auto settings = [&](const char* key, auto& setting) {
    attempt([&] {
      if (json.contains(key)) setting = settings_from<std::decay_t<decltype(setting)>>(json[key], key);
    });
  };
  settings("comparison", into.comparison);
  into.comparison.window = std::max<Index>(into.comparison.window, 1);
  settings("a", into.setting_a);
  settings("b", into.setting_b);
  for (const BoundOption& option : bound(into)) attempt([&] { read_json({option}, json, "settings"); });
}

const std::shared_ptr<const Run>& AppState::run() const {
  static const std::shared_ptr<const Run> none;
  const std::size_t which = selection().run;
  return which < runs.size() ? runs[which] : none;
}

std::shared_ptr<const Run> AppState::subtracted() {
  const std::shared_ptr<const Run>& shown = run();
  if (!shown || !pinned.run() || shown == pinned.run() || !show_difference) return nullptr;
  return pinned.why_not(*shown).empty() ? pinned.run() : nullptr;
}

void AppState::select(Selection selection, const std::string& kind) {
  if (selection.run < runs.size()) {
    const DumpShape& shape = runs[selection.run]->shape();
    selection = within(std::move(selection), shape);
  }
  ViewState next = history_.now();
  next.selection = std::move(selection);
  history_.record(std::move(next), kind);
}

void AppState::select_head(Index layer, Index kv_head) {
  Selection next = selection();
  next.layer = layer;
  next.kv_head = kv_head;
  select(std::move(next));
}

void AppState::begin_with_head(Index layer, Index kv_head) {
  ViewState next = history_.now();
  next.selection.layer = layer;
  next.selection.kv_head = kv_head;
  history_.amend(std::move(next));
}

void AppState::select_cell(std::optional<Index> row, std::optional<Index> token) {
  Selection next = selection();
  next.row = row;
  next.token = token;
  select(std::move(next), "cell");
}

void AppState::select_tokens(std::vector<Index> tokens) {
  Selection next = selection();
  next.tokens = std::move(tokens);
  select(std::move(next), "tokens");
}

void AppState::remember(Cameras cameras, const std::string& press, bool held) {
  ViewState next{selection(), std::move(cameras), *this};
  const bool set = !(next.settings == history_.now().settings);
  const std::string kind = press.empty() ? std::string() : (set ? "settings " : "view ") + press;
  history_.record(std::move(next), kind, History<ViewState>::Clock::now(), held);
}

void AppState::begin_with(Cameras cameras) { history_.amend({selection(), std::move(cameras), *this}); }

}  // namespace kvreplay::viewer
