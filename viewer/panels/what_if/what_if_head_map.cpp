#include "viewer/panels/what_if/what_if_head_map.hpp"

#include "viewer/model/numbers.hpp"
#include "viewer/model/session_keys.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"
#include "viewer/work/what_if_figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace kvreplay::viewer {
namespace {

constexpr Index kHeadsByDefault = 64;
constexpr std::array<std::string_view, 3> kShow = {"A", "B", "B - A"};

}  // namespace

bool WhatIfHeadMap::on(const Run& run) const {
  return all_heads_.value_or(run.shape().layers * run.shape().n_kv <= kHeadsByDefault);
}

void WhatIfHeadMap::follow(PanelContext& context, std::size_t setting, const WhatIfSettings& settings,
                           bool can_follow) {
  if (can_follow) heads_[setting].follow(*context.run(), settings);
  heads_[setting].ask(context);
}

void WhatIfHeadMap::draw_progress() const {
  const Index done = heads_[0].answered() + heads_[1].answered(), all = heads_[0].heads() + heads_[1].heads();
  if (done >= all) return;
  flow(ImGui::CalcTextSize("100 %").x + theme().px(24));
  ImGui::AlignTextToFramePadding();
  dim_text(fmt::format("{:.0f} %", 100 * static_cast<double>(done) / static_cast<double>(all)));
  tip(fmt::format("{} of {} answers: every head under A and B", done, all).c_str());
  busy_mark();
}

void WhatIfHeadMap::choose_figure(const Dump& dump, float beside) {
  const std::vector<std::size_t> there = shown_figures(dump);
  std::vector<Choice> choices;
  for (std::size_t i = 0; i < kShownFigures; ++i) {
    const WhatIfFigure& figure = what_if_figures()[i];
    choices.push_back({.name = figure.title, .tip = figure.about});
    choices.back().enabled = std::find(there.begin(), there.end(), i) != there.end();
    if (!choices.back().enabled) choices.back().tip = why_no_nats(dump, *figure.loss_on);
  }
  shown_ = choices[figure_].enabled ? figure_ : kFutureError;
  if (choose("##figure", choices, shown_,
             std::clamp((ImGui::GetContentRegionAvail().x - beside) / theme().scale, 108.0F, 172.0F)))
    figure_ = shown_;
  tip(what_if_figures()[shown_].about);
}

std::vector<WhatIfHeadMap::OverHeads> WhatIfHeadMap::over_heads() const {
  const WhatIfFigure& what = what_if_figures()[shown_];
  const auto both = [&](const auto& of) {
    return fmt::format("{} / {}", what.text(of(heads_[0])), what.text(of(heads_[1])));
  };
  if (what.loss_on)
    return {{kLossStep.name.data(),
             "What all heads together are predicted to cost, A / B, once all are known",
             both([&](const WhatIfHeads& heads) {
               const auto loss = heads.loss(*what.loss_on);
               return loss ? loss->step() : kNone;
             })}};
  return {{"mean", "Mean over heads, A / B", both([&](const WhatIfHeads& h) { return h.mean(shown_); })},
          {"median", "Median head, A / B: no few heads rule it",
           both([&](const WhatIfHeads& h) { return h.median(shown_); })}};
}

void WhatIfHeadMap::draw(PanelContext& context, ImVec2 size) {
  const Run& run = *context.run();
  const float top = ImGui::GetCursorPosY();
  bool all = on(run);
  if (context.figure && !all) return;
  std::optional<OutOfSight> controls(std::in_place, context.figure);
  ImGui::PushStyleVar(ImGuiStyleVar_FramePadding, {theme().px(6), theme().px(2)});
  if (ImGui::Checkbox("All heads", &all)) all_heads_ = all;
  tip("Computes both settings for all heads in the background");
  if (!all) {
    ImGui::PopStyleVar();
    if (size.y > theme().px(60)) hint("All heads: a map of any figure under A and B.");
    return;
  }
  flow(ImGui::CalcTextSize("ABB - A").x + 6 * ImGui::GetStyle().FramePadding.x + theme().px(2));
  segments("show", kShow, show_);
  draw_progress();
  const auto width_over_heads = [&] {
    const OverHeads first = over_heads().front();
    return figure_width(first.name, first.numbers);
  };
  choose_figure(*run.dump(), width_over_heads() + ImGui::GetStyle().ItemSpacing.x);
  ImGui::PopStyleVar();
  flow(width_over_heads());
  controls.reset();
  if (context.figure) {
    ImGui::AlignTextToFramePadding();
    dim_text(fmt::format("{} of every head, {}:", what_if_figures()[shown_].title, kShow[show_]));
    flow(width_over_heads());
  }
  bool first = true;  // for which there is room already
  for (const auto& [name, about, numbers] : over_heads()) {
    if (!std::exchange(first, false)) flow(figure_width(name, numbers));
    ImGui::AlignTextToFramePadding();
    figure(name, numbers);
    tip(about);
  }
  const Index failed = heads_[0].failed() + heads_[1].failed();
  if (failed > 0)
    error_line(fmt::format("{} of {} failed: {}", failed, heads_[0].heads() + heads_[1].heads(),
                           heads_[heads_[0].failed() > 0 ? 0 : 1].error()));
  draw_map(context.state, {size.x, size.y - (ImGui::GetCursorPosY() - top)});
}

void WhatIfHeadMap::draw_map(AppState& state, ImVec2 size) {
  const Run& run = *state.run();
  const WhatIfHeads &a = heads_[0], &b = heads_[1];
  const WhatIfFigure& what = what_if_figures()[shown_];
  const auto value = [&](const WhatIfHeads& heads, Index head) {
    const WhatIfFigures* found = heads.at(head);
    return found != nullptr ? (*found)[shown_] : kNone;
  };
  const bool difference = show_ == kDifference;
  HeadGridContent content;
  content.key = {run.key(), "what_if_map", shown_, show_, a.version(), b.version()};
  content.quantity = difference ? fmt::format("{}, B - A", what.title) : what.title;
  // Shares as they are written elsewhere.
  const double times = what.is_share() ? 100 : 1;
  content.unit = !what.is_share() ? what.unit : difference ? "points" : "%";
  content.is_signed = difference;
  content.value = [&](Index head) {
    return times *
           (difference ? difference_of(value(a, head), value(b, head)) : value(show_ == 0 ? a : b, head));
  };
  const auto head = map_.draw(size, content, state);
  if (!head) return;
  ImGui::BeginTooltip();
  ImGui::TextUnformatted(
      fmt::format("Layer {}, KV head {}", *head / run.shape().n_kv, *head % run.shape().n_kv).c_str());
  dim_text(what.title);
  figure("A", what.text(value(a, *head)));
  ImGui::SameLine();
  figure("B", what.text(value(b, *head)));
  ImGui::EndTooltip();
}

void WhatIfHeadMap::save(nlohmann::json& json) const {
  json["figure"] = what_if_figures()[figure_].name;
  json["show"] = show_;
  json["map"] = map_.heatmap().save();
  if (all_heads_) json["all_heads"] = *all_heads_;
}

void WhatIfHeadMap::load(const nlohmann::json& json) {
  Keys keys(json);
  keys.read("all_heads", all_heads_);
  keys.read("show", show_, std::size_t{0}, kDifference);
  std::string name;
  keys.read("figure", name);
  for (std::size_t i = 0; i < kShownFigures; ++i)
    if (name == what_if_figures()[i].name) figure_ = i;
  if (const nlohmann::json* map = keys.at("map")) map_.heatmap().load(*map);
}

}  // namespace kvreplay::viewer
