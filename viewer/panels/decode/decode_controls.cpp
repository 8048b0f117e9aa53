#include "viewer/panels/decode/decode_controls.hpp"

#include "analysis/results/kept_text.hpp"
#include "data/error.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/model/token_text.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/policy_controls.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"
#include "viewer/work/head_figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay::viewer {
namespace {

constexpr std::array<std::string_view, 3> kPhases = {"decode", "append-only", "both"};

Index budget_of(const Run& run, const DecodeSettings& settings) {
  return settings.sigma_budget ? kept_tokens(settings.sigma, run.shape().l, settings.semantics)
                               : std::min(settings.budget, run.shape().l);
}

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

/// Ratio or tokens, at what is kept now.
void set_kind(const Run& run, DecodeSettings& settings, bool sigma) {
  const Index kept = budget_of(run, settings), l = run.shape().l;
  settings.budget = std::max<Index>(kept, 1);
  if (l > 0)
    settings.sigma = std::clamp(1 - static_cast<double>(kept) / static_cast<double>(l), 0.001, 0.999);
  settings.sigma_budget = sigma;
}

void edit_budget(const Run& run, DecodeSettings& settings) {
  constexpr std::string_view kinds[] = {"Kept %", "Tokens"};
  std::size_t kind = settings.sigma_budget ? 0 : 1;
  ImGui::BeginGroup();
  if (segments("kind", kinds, kind)) set_kind(run, settings, kind == 0);
  ImGui::EndGroup();
  tip("The budget of a KV head: the share of the prompt, or the tokens, that the cache holds while decoding");
  ImGui::SameLine();
  ImGui::SetNextItemWidth(theme().px(96));
  const ImGuiSliderFlags flags = ImGuiSliderFlags_AlwaysClamp | ImGuiSliderFlags_NoRoundToFormat;
  if (settings.sigma_budget) {
    edit_kept_share(settings.sigma, "", flags);
  } else {
    const auto most = static_cast<int>(std::min<Index>(run.shape().l, 1 << 30));
    auto kept = static_cast<int>(std::clamp<Index>(settings.budget, 0, most));
    if (ImGui::SliderInt("##tokens", &kept, std::min(1, most), most, "",
                         flags | ImGuiSliderFlags_Logarithmic))
      settings.budget = kept;
  }
  ImGui::SameLine(0, theme().px(6));
  ImGui::AlignTextToFramePadding();
  mono_text(settings.sigma_budget
                ? fmt::format("{} = {}", percent(rest_of(settings.sigma)), budget_of(run, settings))
                : fmt::format("{}", budget_of(run, settings)));
}

/// What the policies would choose themselves: "own: 32", "own: 0, 4".
template <class Text>
std::string own_choices(const Run& run, const DecodeSettings& settings, Text text) {
  std::vector<std::string> found;
  for (const std::string& name : settings.policies) {
    try {
      const EvictionRule rule = rule_of(parse_policy(name, {}), settings.semantics, {}, run.shape().l,
                                        budget_of(run, settings), run.dump()->has(Tensor::wo));
      const std::string one = text(rule);
      if (std::find(found.begin(), found.end(), one) == found.end()) found.push_back(one);
    } catch (const InputError&) {
      continue;
    }
  }
  return found.empty() ? "own" : fmt::format("own: {}", fmt::join(found, ", "));
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
  return fmt::format("{}", fmt::join(changed, ", "));
}

void edit_more(const Run& run, DecodeSettings& settings) {
  if (!settings_button(changed_text(settings))) return;
  const DumpShape& shape = run.shape();
  const auto number = [&](const OptionFacts& option, std::optional<Index>& value, Index EvictionRule::*own) {
    settings_row(option);
    const std::string text =
        own_choices(run, settings, [own](const EvictionRule& rule) { return fmt::format("{}", rule.*own); });
    edit_optional(option, value, text, shape.l);
  };
  number(evict_option::window, settings.window, &EvictionRule::window);
  settings_row(evict_option::pool);
  edit_pooling(settings.pool, own_choices(run, settings, [](const EvictionRule& rule) {
                 return OptionValue<Pooling>::text(rule.pool);
               }));
  number(evict_option::sinks, settings.sinks, &EvictionRule::sinks);
  number(evict_option::recent, settings.recent, &EvictionRule::recent);
  settings_row(evict_option::decode_window);
  edit_optional(evict_option::decode_window, settings.decode_window, "all", shape.T - shape.l);
  end_settings();
}

}  // namespace

bool edit_decoding(const Run& run, DecodeSettings& settings) {
  const DecodeSettings before = settings;
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
  edit_more(run, settings);
  return !(settings == before);
}

std::string add_policy(const Run& run, const DecodeSettings& settings) {
  std::string chosen;
  flow(ImGui::CalcTextSize("Add policy").x + 2 * ImGui::GetStyle().FramePadding.x);
  if (ImGui::Button("Add policy")) ImGui::OpenPopup("policies");
  tip("One more policy in the plot");
  if (!ImGui::BeginPopup("policies")) return chosen;
  const auto& there = settings.policies;
  const auto item = [&](const std::string& name, const char* label) {
    const bool shown = std::find(there.begin(), there.end(), name) != there.end();
    const auto why = shown ? std::optional<std::string>() : why_not_policy(run, settings, name);
    if (ImGui::MenuItem(label, nullptr, shown, !shown && !why)) chosen = name;
    if (why && ImGui::IsItemHovered(ImGuiHoveredFlags_AllowWhenDisabled))
      ImGui::SetTooltip("%s", why->c_str());
  };
  const MetricSet metrics = metrics_of(*run.dump());
  for (const EvictionBase base : kBases.all()) {
    const std::string name(name_of(base));
    const bool alone = kBases[base].alone;
    if ((!kBases[base].takes_score && !alone) || kBases[base].searches) {
      item(name, name.c_str());
    } else if (ImGui::BeginMenu(name.c_str())) {
      if (!alone) item(name, "own score");
      for (const TokenMetric metric : kTokenMetrics.all())
        if (metrics.contains(metric) && kTokenMetrics[metric].not_in_decoding.empty())
          item(policy_name(name, name_of(metric)), std::string(name_of(metric)).c_str());
      ImGui::EndMenu();
    }
  }
  ImGui::EndPopup();
  return chosen;
}

PlaybackHit playback_buttons(bool playing, Index step, Index steps, std::optional<Index> spike,
                             const std::string& token) {
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
  ImGui::SameLine(0, t.px(2));
  ImGui::BeginDisabled(!spike);
  if (ImGui::Button("Spike")) hit.to = spike;
  ImGui::EndDisabled();
  if (spike) tip(fmt::format("To step {}, whose error stands out from those around it: {}", *spike, token));
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
  dim_text(where);
  ImGui::PopFont();
  tip("Position and token of the step's query");
  return moved;
}

}  // namespace kvreplay::viewer
