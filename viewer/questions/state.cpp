#include "viewer/questions/state.hpp"

#include "analysis/options/option.hpp"
#include "analysis/tokens/token_stage.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay::viewer {

static BoundOptions bound(Comparison& comparison) {
  static constexpr OptionFacts score{.name = "score"}, reference{.name = "reference"},
      window{.name = "window"};
  return {bind_option(score, comparison.score), bind_option(reference, comparison.reference),
          bind_option(window, comparison.window)};
}

/// Settings that all panels share and that belong to no other group.
static BoundOptions bound(SharedSettings& settings) {
  static constexpr OptionFacts show_b{.name = "show-b"}, show_kept{.name = "show-kept"},
      paint_here{.name = "paint-here"};
  return {bind_option(show_b, settings.show_b), bind_option(show_kept, settings.show_kept),
          bind_option(paint_here, settings.paint_here)};
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
  json["kept"] = to_json(settings.budget);
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
  settings("kept", into.budget);
  into.budget.sigma = std::clamp(into.budget.sigma, 0.001, 0.999);
  into.budget.budget = std::max<Index>(into.budget.budget, 0);
  settings("a", into.setting_a);
  settings("b", into.setting_b);
  for (const BoundOption& option : bound(into)) attempt([&] { read_json({option}, json, "settings"); });
}

void AppState::paint(std::optional<PaintMark> mark) {
  if (!run() || run()->dump() == nullptr)
    return say("What is kept by hand is measured on a dump, and there is none here.");
  std::vector<Index> tokens = selection().tokens;
  if (tokens.empty() && selection().token) tokens = {*selection().token};
  std::erase_if(tokens, [l = run()->shape().l](Index token) { return token >= l; });
  if (tokens.empty())
    return say("Choose tokens of the prompt first: drag over them in the text, or with a lasso.");
  WhatIfSettings& setting = shows_b() ? setting_b : setting_a;
  KeptPaint painted;
  try {
    painted = KeptPaint::of_text(setting.painted);
  } catch (const InputError&) {
    painted = {};  // of a session that was written by hand
  }
  const auto head = std::pair(selection().layer, selection().kv_head);
  painted.mark(tokens, mark, paint_here ? std::optional(head) : std::nullopt);
  setting.painted = painted.text();
  const std::string where = paint_here ? "in this head" : "in all heads";
  const std::string which = counted(std::ssize(tokens), "token");
  say(mark ? fmt::format("{} {} {}: {}.", shows_b() ? "B" : "A", kPaintMarks[*mark].does, which, where)
           : fmt::format("{} left to the policy of {} {}.", which, shows_b() ? "B" : "A", where));
}

std::optional<Index> AppState::linked_window(const std::string& policy,
                                             const PolicySettings& settings) const {
  if (settings.window || !run()) return std::nullopt;
  const auto own = own_rule(policy, settings, *run(), scores);
  const Index usual = std::min(kUsualWindow, run()->shape().l);
  if (!own || own->window != usual || own->policy.own.window || comparison.window == usual)
    return std::nullopt;
  return comparison.window;
}

WhatIfSettings AppState::as_linked(WhatIfSettings settings) const {
  if (!settings.linked) return settings;
  static_cast<KeptBudget&>(settings) = budget;
  if (const auto window = linked_window(settings.policy(), settings)) settings.window = window;
  return settings;
}

DecodeSettings AppState::as_linked(DecodeSettings settings) const {
  if (!settings.linked) return settings;
  static_cast<KeptBudget&>(settings) = budget;
  for (std::string& policy : settings.policies)
    if (const auto window = linked_window(policy, settings)) policy = with_window(policy, *window);
  return settings;
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
  head_chosen_ |= selection.layer != next.selection.layer || selection.kv_head != next.selection.kv_head;
  next.selection = std::move(selection);
  history_.record(std::move(next), kind);
}

Selection AppState::in_run(std::size_t which) const {
  Selection next = selection();
  if (run() != nullptr && which < runs.size())
    next.layer = runs[which]->layers().layer(run()->layer_number(next.layer)).value_or(next.layer);
  next.run = which;
  return next;
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
  head_chosen_ = false;
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
