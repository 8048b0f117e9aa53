#include "viewer/work/state.hpp"

#include "data/error.hpp"

#include <algorithm>
#include <utility>

namespace kvreplay::viewer {
namespace {

nlohmann::json to_json(const Comparison& comparison) {
  return {{"score", name_of(comparison.score)},
          {"reference", name_of(comparison.reference)},
          {"window", comparison.window}};
}

Comparison comparison_of(const nlohmann::json& json, const std::string& where) {
  const SettingsReader reader(json, where);
  Comparison comparison;
  const auto metric = [&](const char* key, TokenMetric& into) {
    std::string name;
    reader.read(key, name);
    if (const auto named = kTokenMetrics.named(name)) into = *named;
  };
  metric("score", comparison.score);
  metric("reference", comparison.reference);
  reader.read("window", comparison.window);
  comparison.window = std::max<Index>(comparison.window, 1);
  return comparison;
}

}  // namespace

WhatIfSettings SharedSettings::second_setting() {
  WhatIfSettings settings;
  settings.score = name_of(TokenMetric::joint);
  return settings;
}

nlohmann::json to_json(const SharedSettings& settings) {
  nlohmann::json json = {{"comparison", to_json(settings.comparison)},
                         {"a", to_json(settings.setting_a)},
                         {"b", to_json(settings.setting_b)},
                         {"show_b", settings.show_b},
                         {"show_kept", settings.show_kept}};
  if (settings.budget_line) json["budget_line"] = *settings.budget_line;
  return json;
}

void read_settings(const nlohmann::json& json, SharedSettings& into) {
  // One that cannot be read must not cost the others.
  const auto attempt = [&](const char* key, const auto& read) {
    if (!json.is_object() || !json.contains(key)) return;
    try {
      read(json[key]);
    } catch (const InputError&) {
    }
  };
  attempt("comparison", [&](const auto& found) { into.comparison = comparison_of(found, "comparison"); });
  attempt("a", [&](const auto& found) { into.setting_a = what_if_settings(found, "A"); });
  attempt("b", [&](const auto& found) { into.setting_b = what_if_settings(found, "B"); });
  const auto field = [&](const char* key, auto& value) {
    attempt(key, [&](const auto&) { SettingsReader(json, "settings").read(key, value); });
  };
  field("show_b", into.show_b);
  field("show_kept", into.show_kept);
  field("budget_line", into.budget_line);
}

const std::shared_ptr<const Run>& AppState::run() const {
  static const std::shared_ptr<const Run> none;
  const std::size_t which = selection().run;
  return which < runs.size() ? runs[which] : none;
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

void AppState::say(std::string line, bool is_error) {
  message_ = std::move(line);
  message_is_error_ = is_error;
}

}  // namespace kvreplay::viewer
