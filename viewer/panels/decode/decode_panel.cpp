#include "viewer/gl/ui_context.hpp"
#include "viewer/model/playback.hpp"
#include "viewer/model/token_text.hpp"
#include "viewer/panels/decode/decode_controls.hpp"
#include "viewer/panels/decode/decode_list.hpp"
#include "viewer/panels/decode/decode_question.hpp"
#include "viewer/panels/no_dump.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/plot.hpp"
#include "viewer/widgets/theme.hpp"
#include "viewer/work/command_text.hpp"
#include "viewer/work/csv_table.hpp"
#include "viewer/work/decode_results.hpp"
#include "viewer/work/policy_settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace kvreplay::viewer {
namespace {

/// Decades that are worth an axis.
constexpr double kErrorSpan = 1e8;
/// Runs that a tooltip lists.
constexpr std::size_t kRunsListed = 10;

/// What policies lose at every decoding step, and what their caches hold.
class DecodePanel final : public Panel {
 public:
  void draw(PanelContext& context) override;
  std::string figure_title(PanelContext&) const override {
    return "Output error of every decoding step, and what the caches hold";
  }
  std::vector<std::string> figure_settings(PanelContext& context) const override;
  std::string csv(PanelContext& context) const override;
  nlohmann::json save() const override { return {{"settings", to_json(settings_)}}; }
  void load(const nlohmann::json& json) override;

 private:
  void draw_controls(AppState& state);
  void draw_plot(PanelContext& context, ImVec2 size);
  void draw_plot_tip(AppState& state, const Plot& plot) const;
  void draw_list(PanelContext& context);
  void follow(const Selection& selected, Index steps);
  void go_to(AppState& state, Index step);
  void play_on(AppState& state, Index steps);
  void draw_playback(AppState& state, Index steps);
  std::optional<Index> spike() const;
  ImU32 color_of(const std::string& policy);

  DecodeSettings settings_;
  std::vector<std::pair<std::string, std::size_t>> colors_;  // policies by their number of a colour
  DecodeQuestions questions_;
  const DecodeAnswers* now_ = nullptr;  // of this frame
  DecodeList list_;
  PlotView view_;
  Playback playback_;
  Index step_ = 0;
  bool step_chosen_ = false;  // else the last one
  std::optional<Index> followed_row_;
  std::optional<std::size_t> pointed_;  // number of the run under the mouse
};

/// A policy keeps its colour while others come and go.
ImU32 DecodePanel::color_of(const std::string& policy) {
  const auto& series = theme().series;
  const auto known =
      std::find_if(colors_.begin(), colors_.end(), [&](const auto& one) { return one.first == policy; });
  if (known != colors_.end()) return series[known->second % series.size()];
  std::size_t free = 0;
  while (std::any_of(colors_.begin(), colors_.end(), [&](const auto& one) { return one.second == free; }))
    ++free;
  colors_.emplace_back(policy, free);
  return series[free % series.size()];
}

void DecodePanel::follow(const Selection& selected, Index steps) {
  const Index first = now_->view->runs.front().first_step;
  if (std::exchange(followed_row_, selected.row) != selected.row && selected.row && *selected.row >= first) {
    step_ = *selected.row - first;
    step_chosen_ = true;
  }
  step_ = step_chosen_ ? std::clamp<Index>(step_, 0, steps - 1) : steps - 1;
}

void DecodePanel::go_to(AppState& state, Index step) {
  step_ = step;
  step_chosen_ = true;
  Selection next = state.selection();
  next.row = now_->view->runs.front().first_step + step;
  followed_row_ = next.row;
  state.select(std::move(next), "decoding step");
}

void DecodePanel::play_on(AppState& state, Index steps) {
  const Index to = playback_.advance(step_, steps, state.clock());
  if (to != step_) go_to(state, to);
  state.wakes_at = playback_.due();
}

/// The next one of any run, round the end.
std::optional<Index> DecodePanel::spike() const {
  for (const Index from : {step_, Index{-1}}) {
    std::optional<Index> found;
    for (const DecodeRun& run : now_->view->runs)
      if (const auto one = next_spike(run.error, from, true); one && (!found || *one < *found)) found = one;
    if (found) return found;
  }
  return std::nullopt;
}

void DecodePanel::draw_playback(AppState& state, Index steps) {
  const std::optional<Index> spike = this->spike();
  const Index first = now_->view->runs.front().first_step;
  const std::string token = spike ? token_text(state.run()->labels(), first + *spike, 24) : std::string();
  const PlaybackHit hit = playback_buttons(playback_.playing(), step_, steps, spike, token);
  if (hit.to) go_to(state, *hit.to);
  if (!hit.toggled) return;
  if (playback_.playing()) {
    playback_.pause();
  } else {
    if (step_ + 1 >= steps) go_to(state, 0);
    playback_.play(state.clock());
  }
  state.wakes_at = playback_.due();
}

void DecodePanel::draw(PanelContext& context) {
  AppState& state = context.state;
  now_ = nullptr;
  const std::shared_ptr<const Run>& run = state.run();
  if (run == nullptr) return hint("Open a dump or a result folder.");
  const DumpShape& shape = run->shape();
  if (future_rows(shape.l, shape.T, shape.first_query()).count() == 0)
    return hint(
        shape.T > shape.l
            ? fmt::format("Decoding cannot be replayed: the dump's {} positions after the prompt have no "
                          "queries.",
                          shape.T - shape.l)
            : fmt::format("Decoding cannot be replayed: the dump has no decoding steps, its {} positions "
                          "are all of the prompt.",
                          shape.T));
  if (run->dump() == nullptr) {
    const auto why = run->results() != nullptr
                         ? why_no_decode_results(*run->results(), state.selection().layer)
                         : std::optional<std::string>("there are no results");
    if (why)
      return hint_no_dump(
          context.state,
          fmt::format("Decoding is replayed from the dump, which is not at hand: {}. Nor do these results "
                      "hold it: {}.",
                      run->why_no_dump(), *why));
  }
  if (settings_.linked) static_cast<KeptBudget&>(settings_) = state.budget;
  now_ = &questions_.ask(context, settings_);
  {
    const OutOfSight controls(context.figure);
    draw_controls(state);
  }
  if (!now_->error.empty()) return error_line(now_->error);
  if (now_->view == nullptr) return hint("Replaying the decoding steps ...");
  if (now_->view->runs.empty()) return hint("Add a policy above.");
  follow(state.selection(), now_->view->runs.front().steps());
  play_on(state, now_->view->runs.front().steps());

  const Theme& t = theme();
  const ImVec2 room = ImGui::GetContentRegionAvail();
  if (room.x < t.px(500) || room.y > t.px(420)) {
    const float line = ImGui::GetTextLineHeight();
    const float needed =
        static_cast<float>(now_->view->runs.size()) * (line + t.px(28)) + 3 * line + t.px(24);
    draw_plot(context,
              {room.x, std::max(t.px(110), std::clamp(room.y - needed, room.y * 0.4F, room.y * 0.7F))});
    return draw_list(context);
  }
  const float list = std::clamp(room.x * 0.55F, t.px(300), t.px(680));
  const ImVec2 at = ImGui::GetCursorPos();
  draw_plot(context, {room.x - list - t.px(8), room.y});
  ImGui::SetCursorPos({at.x + room.x - list, at.y});
  ImGui::BeginChild("runs", {list, room.y});
  draw_list(context);
  ImGui::EndChild();
}

void DecodePanel::draw_controls(AppState& state) {
  const Run& run = *state.run();
  if (run.dump() == nullptr) {
    ImGui::AlignTextToFramePadding();
    dim_text("As the run computed it");
    tip(fmt::format("Other settings, and what the caches hold, need the dump: {}", run.why_no_dump())
            .c_str());
  } else {
    edit_decoding(run, state.budget, settings_);
    const std::string added = add_policy(run, settings_);
    if (!added.empty()) settings_.policies.push_back(added);
  }
  if (now_->pending) busy_mark();
}

void DecodePanel::draw_plot(PanelContext& context, ImVec2 size) {
  const Theme& t = theme();
  const std::vector<DecodeRun>& runs = now_->view->runs;
  const Index steps = runs.front().steps();
  double least = std::numeric_limits<double>::infinity(), most = 0;
  for (const DecodeRun& run : runs)
    for (const double error : run.error)
      if (std::isfinite(error) && error > 0) {
        least = std::min(least, error);
        most = std::max(most, error);
      }
  if (most == 0) least = most = 1;  // nothing is ever lost
  least = std::max(least, most / kErrorSpan);
  const double pad = std::pow(most / least, 0.05) * 1.05;
  const auto last = static_cast<double>(std::max<Index>(steps - 1, 1));
  Plot plot("errors", size, {"decoding step", false, -0.015 * last, 1.015 * last},
            {"output error", true, least / pad, most * pad}, view_, true);
  const bool held = ImGui::IsItemActive() && ImGui::IsMouseDown(ImGuiMouseButton_Left);
  std::vector<double> x(steps);
  std::iota(x.begin(), x.end(), 0.0);
  const float fade = now_->stale ? 0.45F : 1;
  const auto line = [&](std::size_t r) {
    const bool pointed = r == pointed_;
    draw_curve(plot, x, runs[r].error,
               faded(color_of(runs[r].policy), pointed || !pointed_ ? fade : fade * 0.35F),
               stroke_of(runs[r]), pointed ? 2.4F : 1.5F);
  };
  for (std::size_t r = 0; r < runs.size(); ++r)
    if (r != pointed_) line(r);
  if (pointed_ && *pointed_ < runs.size()) line(*pointed_);

  auto at = static_cast<double>(step_);
  const bool moved = plot.drag_vertical("step", at, t.accent);
  if (held) at = plot.x_of(std::clamp(ImGui::GetMousePos().x, plot.low_corner().x, plot.high_corner().x));
  if (moved || held)
    if (const auto to = std::clamp<Index>(std::lround(at), 0, steps - 1); to != step_)
      go_to(context.state, to);
  if (plot.hovered()) draw_plot_tip(context.state, plot);
}

void DecodePanel::draw_plot_tip(AppState& state, const Plot& plot) const {
  const std::vector<DecodeRun>& runs = now_->view->runs;
  const auto step =
      std::clamp<Index>(std::lround(plot.x_of(ImGui::GetMousePos().x)), 0, runs.front().steps() - 1);
  const Index position = runs.front().first_step + step;
  state.next_hover.row = position;
  ImGui::BeginTooltip();
  figure("step", fmt::format("{}", step));
  figure("query", fmt::format("{}  {}", position, token_text(state.run()->labels(), position, 32)));
  for (std::size_t r = 0; r < std::min(runs.size(), kRunsListed); ++r)
    figure(title_of(runs[r]).c_str(), number_text(runs[r].error[step]));
  if (runs.size() > kRunsListed) dim_text(fmt::format("and {} more", runs.size() - kRunsListed));
  ImGui::EndTooltip();
}

void DecodePanel::draw_list(PanelContext& context) {
  const Run& run = *context.state.run();
  const DecodeRun& first = now_->view->runs.front();
  draw_playback(context.state, first.steps());
  Index step = step_;
  if (context.figure)
    dim_text(fmt::format("step {}, position {}", step, first.first_step + step));
  else if (edit_step(run, first.steps(), first.first_step, step))
    go_to(context.state, step);
  for (const LeftOut& left : now_->left_out) {
    ImGui::PushID(left.what.c_str());
    {
      const OutOfSight controls(context.figure);
      if (small_button("remove")) std::erase(settings_.policies, left.what.substr(0, left.what.find(' ')));
      ImGui::SameLine();
    }
    dim_text(left.what + " cannot decode");
    tip(left.why.c_str());
    ImGui::PopID();
  }
  const DecodeList::Done done = list_.draw(
      context.state, *now_, step_, [this](const std::string& policy) { return color_of(policy); },
      run.dump() != nullptr && settings_.policies.size() > 1 && !context.figure);
  pointed_ = done.pointed;
  if (done.removed.empty()) return;
  std::erase(settings_.policies, done.removed);
  std::erase_if(colors_, [&](const auto& one) { return one.first == done.removed; });
}

std::vector<std::string> DecodePanel::figure_settings(PanelContext& context) const {
  if (context.state.run()->dump() == nullptr) return {};
  // What is drawn has policies that there are.
  if (now_ == nullptr || now_->view == nullptr) return {};
  return {"evict" + evict_options_text(evict_options_of(settings_))};
}

std::string DecodePanel::csv(PanelContext& context) const {
  if (now_ == nullptr || now_->view == nullptr || now_->view->runs.empty()) return {};
  const Selection& selected = context.state.selection();
  CsvTable table("layer,kv_head,policy,phase,budget,step,position,output_error,cache_tokens");
  for (const DecodeRun& run : now_->view->runs) {
    const std::vector<Index> sizes = now_->fates.empty() ? std::vector<Index>() : cache_sizes(run);
    for (std::size_t s = 0; s < run.error.size(); ++s)
      table.row(selected.layer, selected.kv_head, run.policy, run.append_only ? "append-only" : "decode",
                run.budget > 0 ? std::optional(run.budget) : std::nullopt, s,
                run.first_step + static_cast<Index>(s), run.error[s],
                sizes.empty() ? std::nullopt : std::optional(sizes[s]));
  }
  return table.text();
}

void DecodePanel::load(const nlohmann::json& json) {
  if (!json.is_object() || !json.contains("settings")) return;
  colors_.clear();
  read_settings(json, "settings", settings_);
  if (settings_.policies.empty()) settings_.policies = DecodeSettings().policies;
}

}  // namespace

template <>
std::unique_ptr<Panel> make_panel<PanelKind::decode>() {
  return std::make_unique<DecodePanel>();
}

}  // namespace kvreplay::viewer
