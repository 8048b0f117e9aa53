#include "analysis/results/kept_text.hpp"
#include "data/error.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/model/token_text.hpp"
#include "viewer/panels/decode/decode_parts.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/policy_controls.hpp"
#include "viewer/questions/head_figures.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

namespace kvreplay::viewer {
namespace {

constexpr std::array<std::string_view, 3> kPhases = {"decode", "append-only", "both"};

/// Why a policy cannot decode on this dump, as one line; nothing where it can.
std::optional<std::string> why_not_policy(const Run& run, const DecodeSettings& settings,
                                          const std::string& name) {
  DecodeSettings alone = settings;
  alone.policies = {name};
  try {
    decode_plan(alone, *run.dump());
  } catch (const InputError& error) {
    return error.what();
  }
  return std::nullopt;
}

void edit_budget(const Run& run, DecodeSettings& settings) {
  bool in_tokens = !settings.sigma_budget;
  const Index l = run.shape().l;
  ImGui::BeginGroup();
  if (either("kind", "Kept %", "Tokens", in_tokens)) count_otherwise(settings, l, settings.semantics);
  ImGui::EndGroup();
  tip("The budget of a KV head: the share of the prompt, or the tokens, that the cache holds while decoding");
  flow(theme().px(96) + link_width());
  ImGui::SetNextItemWidth(theme().px(96));
  edit_kept(settings, l, "", ImGuiSliderFlags_AlwaysClamp | ImGuiSliderFlags_NoRoundToFormat);
  ImGui::SameLine(0, 0);
  link_toggle(settings.linked);
  const Index tokens = settings.tokens(l, settings.semantics);
  const std::string kept = settings.sigma_budget
                               ? fmt::format("{} = {}", percent(rest_of(settings.sigma)), tokens)
                               : fmt::format("{}", tokens);
  flow(mono_width(kept));
  ImGui::AlignTextToFramePadding();
  mono_text(kept);
}

/// Defaults of the policies: "default: 32", "default: 0, 4".
template <class Text>
std::string own_choices(const Run& run, const DecodeSettings& settings, Text text) {
  std::vector<std::string> found;
  for (const std::string& name : settings.policies) {
    try {
      const EvictionRule rule =
          rule_of(parse_policy(name, {}), settings.semantics, {}, run.shape().l,
                  settings.tokens(run.shape().l, settings.semantics), run.dump()->projects_values());
      const std::string one = text(rule);
      if (std::find(found.begin(), found.end(), one) == found.end()) found.push_back(one);
    } catch (const InputError&) {
      continue;
    }
  }
  return found.empty() ? "default" : fmt::format("default: {}", fmt::join(found, ", "));
}

std::string changed_text(const DecodeSettings& settings) {
  std::vector<std::string> changed;
  const auto add = [&](const char* name, const std::optional<Index>& value) {
    if (value) changed.push_back(fmt::format("{} {}", name, *value));
  };
  add("window", settings.window);
  if (settings.pool) changed.push_back("pool " + OptionValue<Pooling>::text(*settings.pool));
  add("sinks", settings.sinks);
  add("recent", settings.recent);
  add("steps", settings.decode_window);
  add("every", settings.interval);
  if (settings.prompt != PromptCache::cut)
    changed.push_back(fmt::format("prompt {}", kPromptCaches[settings.prompt].name));
  return fmt::format("{}", fmt::join(changed, ", "));
}

void edit_more(const AppState& state, DecodeSettings& settings) {
  if (!settings_button(changed_text(settings))) return;
  const Run& run = *state.run();
  const DumpShape& shape = run.shape();
  const DecodeSettings counted = state.as_linked(settings);
  const auto number = [&](const OptionFacts& option, std::optional<Index>& value, Index EvictionRule::*own) {
    settings_row(option);
    const std::string text =
        own_choices(run, counted, [own](const EvictionRule& rule) { return fmt::format("{}", rule.*own); });
    edit_optional(option, value, text, shape.l);
  };
  number(evict_option::window, settings.window, &EvictionRule::window);
  settings_row(evict_option::pool);
  edit_pooling(settings.pool, own_choices(run, counted, [](const EvictionRule& rule) {
                 return OptionValue<Pooling>::text(rule.pool);
               }));
  number(evict_option::sinks, settings.sinks, &EvictionRule::sinks);
  number(evict_option::recent, settings.recent, &EvictionRule::recent);
  settings_row(evict_option::decode_window);
  edit_optional(evict_option::decode_window, settings.decode_window, "all", shape.T - shape.l);
  settings_row(decoding_option::interval);
  edit_optional(decoding_option::interval, settings.interval, "every step", shape.T - shape.l);
  settings_row(evict_option::prompt);
  choose("##prompt", kPromptCaches, settings.prompt, 86);
  end_settings();
}

}  // namespace

void edit_decoding(AppState& state, DecodeSettings& settings) {
  const Run& run = *state.run();
  const LinkedBudget linked(state.budget, settings, settings.linked);
  edit_budget(run, settings);
  flow(theme().px(108));
  std::size_t phase = settings.decode && settings.append_only ? 2 : settings.append_only ? 1 : 0;
  if (choose("##phase", kPhases, phase, 108)) {
    settings.decode = phase != 1;
    settings.append_only = phase != 0;
  }
  tip("decode: after every step the cache is cut back to the budget. append-only: nothing cached is evicted; "
      "a "
      "new token stays if it ranks among the first.");
  flow(theme().px(86));
  choose("##semantics", kSemantics, settings.semantics, 86);
  tip(evict_option::semantics.meaning.data());
  edit_more(state, settings);
}

namespace {

/// A policy that Decode may show; in the menu it stands under `base`, where that takes several scores.
struct AddedPolicy {
  std::optional<EvictionBase> base;
  std::string_view label, plain;
};

struct AddedPolicies {
  std::vector<Choice> choices;
  std::vector<AddedPolicy> menu;  // one each
};

AddedPolicies added_policies(const Run& run, const DecodeSettings& settings) {
  AddedPolicies all;
  const auto add = [&](const std::string& name, const AddedPolicy& place, std::string plain) {
    const auto& there = settings.policies;
    const bool shown = std::find(there.begin(), there.end(), name) != there.end();
    const auto why = shown ? std::optional<std::string>("is shown") : why_not_policy(run, settings, name);
    all.choices.push_back(
        {.name = name, .plain = std::move(plain), .tip = why.value_or(""), .enabled = !why});
    all.menu.push_back(place);
  };
  const MetricSet metrics = metrics_of(*run.dump());
  for (const EvictionBase base : kBases.all()) {
    const EvictionBaseFacts& facts = kBases[base];
    const std::string name(name_of(base));
    const bool one_score = (!facts.takes_score && !facts.alone) || facts.searches;
    if (one_score) add(name, {{}, facts.name, facts.plain}, std::string(facts.plain));
    if (one_score) continue;
    if (!facts.alone) add(name, {base, "own score", {}}, std::string(facts.plain));
    for (const TokenMetric metric : kTokenMetrics.all()) {
      const TokenMetricFacts& score = kTokenMetrics[metric];
      if (!metrics.contains(metric) || !score.not_in_decoding.empty()) continue;
      add(policy_name(name, score.name), {base, score.name, score.plain},
          facts.alone ? std::string(score.plain) : fmt::format("{}, by {}", facts.plain, score.plain));
    }
  }
  return all;
}

/// Menu by menu; the number of what was chosen.
std::optional<std::size_t> policy_menus(const AddedPolicies& all) {
  std::optional<std::size_t> chosen;
  for (std::size_t i = 0; i < all.menu.size();) {
    const std::optional<EvictionBase> base = all.menu[i].base;
    std::size_t end = i + 1;
    while (base && end < all.menu.size() && all.menu[end].base == base) ++end;
    const bool open =
        !base || ImGui::BeginMenu(fmt::format("{} ({})", kBases[*base].plain, name_of(*base)).c_str());
    for (; i < end; ++i) {
      if (!open) continue;
      const AddedPolicy& one = all.menu[i];
      const Choice& choice = all.choices[i];
      const std::string first(one.plain.empty() ? one.label : one.plain),
          second(one.plain.empty() ? "" : one.label);
      if (ImGui::MenuItem(first.c_str(), second.c_str(), false, choice.enabled)) chosen = i;
      if (!choice.tip.empty() && ImGui::IsItemHovered(ImGuiHoveredFlags_AllowWhenDisabled))
        ImGui::SetTooltip("%s", choice.tip.c_str());
    }
    if (base && open) ImGui::EndMenu();
  }
  return chosen;
}

}  // namespace

std::string add_policy(const Run& run, const DecodeSettings& settings) {
  flow(ImGui::CalcTextSize("Add policy").x + 2 * ImGui::GetStyle().FramePadding.x);
  if (ImGui::Button("Add policy")) ImGui::OpenPopup("policies");
  tip("One more policy in the plot");
  if (!ImGui::BeginPopup("policies")) return {};
  const AddedPolicies all = added_policies(run, settings);
  std::optional<std::size_t> in_menus;
  const auto found = choice_list(all.choices, "", [&] { in_menus = policy_menus(all); });
  const std::optional<std::size_t> chosen = found ? found : in_menus;
  if (found) ImGui::CloseCurrentPopup();
  ImGui::EndPopup();
  return chosen ? all.choices[*chosen].name : std::string();
}

PlaybackHit playback_buttons(bool playing, Index step, Index steps, const PlaybackJump& spike,
                             const PlaybackJump& divergence) {
  const Theme& t = theme();
  PlaybackHit hit;
  ImGui::PushStyleVar(ImGuiStyleVar_FramePadding, {t.px(4), 0});
  const float side = ImGui::GetFrameHeight();
  if (ImGui::ArrowButton("back", ImGuiDir_Left) && step > 0) hit.to = step - 1;
  tip("One step back");
  ImGui::SameLine(0, t.px(2));
  const ImVec2 at = ImGui::GetCursorScreenPos();
  hit.toggled = ImGui::Button("##play", {side * 1.3F, side});
  tip(playing ? "Pause" : "Plays the decoding steps, 8 a second; the text goes along");
  ImDrawList* list = ImGui::GetWindowDrawList();
  const ImVec2 middle = {at.x + side * 0.65F, at.y + side * 0.5F};
  const float r = side * 0.27F;
  if (playing)
    for (const float x : {-0.75F * r, 0.3F * r})
      list->AddRectFilled({middle.x + x, middle.y - r}, {middle.x + x + 0.5F * r, middle.y + r}, t.text);
  else
    list->AddTriangleFilled({middle.x - 0.7F * r, middle.y - r}, {middle.x - 0.7F * r, middle.y + r},
                            {middle.x + r, middle.y}, t.text);
  ImGui::SameLine(0, t.px(2));
  if (ImGui::ArrowButton("on", ImGuiDir_Right) && step + 1 < steps) hit.to = step + 1;
  tip("One step on");
  const auto jump = [&](const char* label, const PlaybackJump& to) {
    ImGui::SameLine(0, t.px(2));
    ImGui::BeginDisabled(!to.step);
    if (small_button(label)) hit.to = to.step;
    ImGui::EndDisabled();
    if (to.step)
      tip(to.what);
    else if (ImGui::IsItemHovered(ImGuiHoveredFlags_AllowWhenDisabled))
      ImGui::SetTooltip("%s", to.what.c_str());
  };
  jump("Spike", spike);
  jump("Divergence", divergence);
  ImGui::PopStyleVar();
  flow(ImGui::CalcTextSize("after step 8888").x + t.px(76));
  return hit;
}

bool edit_step(const Run& run, Index steps, Index first_step, Index& step) {
  dim_text("after step");
  ImGui::SameLine(0, theme().px(5));
  const std::string number = fmt::format("{}", step);
  ImGui::PushFont(mono_font());
  const float digits = ImGui::CalcTextSize(fmt::format("{}", steps).c_str()).x;
  ImGui::TextUnformatted(number.c_str());
  ImGui::PopFont();
  ImGui::SameLine(0, theme().px(6) + digits - ImGui::GetItemRectSize().x);
  const std::string where =
      fmt::format("{} {}", first_step + step, token_text(run.labels(), first_step + step, 12));
  const float room = ImGui::GetContentRegionAvail().x, text = theme().px(104);
  auto value = static_cast<int>(step);
  ImGui::PushStyleVar(ImGuiStyleVar_FramePadding, {theme().px(4), 0});
  ImGui::SetNextItemWidth(std::max(theme().px(60), room - text));
  const bool moved = ImGui::SliderInt("##step", &value, 0, static_cast<int>(std::max<Index>(steps - 1, 0)),
                                      "", ImGuiSliderFlags_AlwaysClamp);
  ImGui::PopStyleVar();
  tip("The decoding step whose cache is shown. Dragging on the plot moves it, too.");
  if (moved) step = value;
  if (room - text < theme().px(60)) return moved;
  ImGui::SameLine(0, theme().px(6));
  ImGui::PushFont(mono_font());
  dim_text(elided(where, ImGui::GetContentRegionAvail().x));
  ImGui::PopFont();
  tip("Position and token of the step's query");
  return moved;
}

}  // namespace kvreplay::viewer
