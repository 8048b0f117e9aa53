#include "analysis/report/plots.hpp"
#include "viewer/model/playback.hpp"
#include "viewer/model/token_text.hpp"
#include "viewer/panels/decode/decode_parts.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/panels/pinned_run.hpp"
#include "viewer/questions/command_text.hpp"
#include "viewer/questions/csv_table.hpp"
#include "viewer/questions/decoding.hpp"
#include "viewer/questions/policy_settings.hpp"
#include "viewer/questions/state.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/plot.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

namespace kvreplay::viewer {
namespace {

/// The output error of every decoding step, a curve a run, and a line at the present one.
class DecodePlot {
 public:
  /// `size` in pixels; the run of number `pointed` stands out. The step that was gone to, else nothing.
  std::optional<Index> draw(AppState& state, const DecodeShown& shown, ImVec2 size,
                            std::optional<std::size_t> pointed);

 private:
  PlotView view_;
};

/// Decades that are worth an axis.
constexpr double kErrorSpan = 1e8;
/// Runs that a tooltip lists.
constexpr std::size_t kRunsListed = 10;

PlotAxis error_axis(const DecodeShown& shown) {
  double least = std::numeric_limits<double>::infinity(), most = 0;
  const auto take = [&](const DecodeRun& run) {
    for (const double error : run.error)
      if (std::isfinite(error) && error > 0) {
        least = std::min(least, error);
        most = std::max(most, error);
      }
  };
  for (std::size_t r = 0; r < shown.runs().size(); ++r) {
    take(shown.runs()[r]);
    if (const DecodeRun* pinned = shown.pinned_run(r)) take(*pinned);
  }
  if (most == 0) least = most = 1;  // nothing is ever lost
  least = std::max(least, most / kErrorSpan);
  const double pad = std::pow(most / least, 0.05) * 1.05;
  return {"output error", true, least / pad, most * pad};
}

void draw_tip(AppState& state, const DecodeShown& shown, const Plot& plot) {
  const std::vector<DecodeRun>& runs = shown.runs();
  const auto step = std::clamp<Index>(std::lround(plot.x_of(ImGui::GetMousePos().x)), 0, shown.steps() - 1);
  const Index position = shown.first_step() + step;
  state.next_hover.row = position;
  ImGui::BeginTooltip();
  figure("step", fmt::format("{}", step));
  figure("query", fmt::format("{}  {}", position, token_text(state.run()->labels(), position, 32)));
  for (std::size_t r = 0; r < std::min(runs.size(), kRunsListed); ++r) {
    figure(title_of(runs[r]).c_str(), number_text(runs[r].error[step]));
    if (const DecodeRun* pinned = shown.pinned_run(r); pinned != nullptr && step < pinned->steps()) {
      ImGui::SameLine();
      dim_text("pinned " + pinned_text(runs[r].error[step], pinned->error[step]));
    }
  }
  if (runs.size() > kRunsListed) dim_text(fmt::format("and {} more", runs.size() - kRunsListed));
  ImGui::EndTooltip();
}

/// A ring where each run diverges.
void draw_divergences(Plot& plot, const DecodeShown& shown) {
  const Theme& t = theme();
  for (const Divergence& one : shown.divergences) {
    const DecodeRun& run = shown.runs()[one.run];
    plot.list()->AddCircle(plot.at(static_cast<double>(one.step), run.error[one.step]), t.px(4.5F),
                           shown.color_of(run), 0, t.px(1.6F));
  }
}

std::optional<Index> DecodePlot::draw(AppState& state, const DecodeShown& shown, ImVec2 size,
                                      std::optional<std::size_t> pointed) {
  const std::vector<DecodeRun>& runs = shown.runs();
  const Index steps = shown.steps();
  const auto last = static_cast<double>(std::max<Index>(steps - 1, 1));
  Plot plot("errors", size, {"decoding step", false, -0.015 * last, 1.015 * last}, error_axis(shown), view_,
            true);
  const bool held = ImGui::IsItemActive() && ImGui::IsMouseDown(ImGuiMouseButton_Left);
  std::vector<double> x(steps);
  std::iota(x.begin(), x.end(), 0.0);
  const auto line = [&](std::size_t r) {
    const bool stands_out = r == pointed;
    const float opacity = stands_out || !pointed ? 1 : 0.35F;
    const ImU32 color = shown.color_of(runs[r]);
    if (const DecodeRun* pinned = shown.pinned_run(r))
      draw_curve(plot, x, pinned->error, faded(color, opacity * kPinnedOpacity),
                 pinned_stroke(stroke_of(runs[r])), kPinnedThickness);
    draw_curve(plot, x, runs[r].error, faded(color, opacity), stroke_of(runs[r]), stands_out ? 2.4F : 1.5F);
  };
  for (std::size_t r = 0; r < runs.size(); ++r)
    if (r != pointed) line(r);
  if (pointed && *pointed < runs.size()) line(*pointed);
  draw_divergences(plot, shown);

  std::optional<Index> gone_to;
  auto at = static_cast<double>(shown.step);
  const bool moved = plot.drag_vertical("step", at, theme().accent);
  if (held) at = plot.x_of(std::clamp(ImGui::GetMousePos().x, plot.low_corner().x, plot.high_corner().x));
  if (moved || held)
    if (const auto to = std::clamp<Index>(std::lround(at), 0, steps - 1); to != shown.step) gone_to = to;
  if (plot.hovered()) draw_tip(state, shown, plot);
  return gone_to;
}

/// Displayed decoding step: follows the selected query, can be played, and jumps to events.
class DecodeSteps {
 public:
  Index now() const { return now_; }
  /// Once a frame, before all else: follows the selection, and plays on.
  void begin(AppState& state, const DecodeShown& shown);
  void go_to(AppState& state, Index step);
  /// Its buttons and slider, and what diverges at this step, a line each. `pinned` is the pinned run's name.
  void draw(PanelContext& context, const DecodeShown& shown, const std::string& pinned);

 private:
  Playback playback_;
  Index now_ = 0, first_step_ = 0;
  bool chosen_ = false;  // else the last one
  std::optional<Index> followed_row_;
};

/// The next one of any run, round the end.
PlaybackJump spike(const Run& run, const DecodeShown& shown) {
  for (const Index from : {shown.step, Index{-1}}) {
    std::optional<Index> found;
    for (const DecodeRun& one : shown.runs())
      if (const auto next = next_spike(one.error, from, true); next && (!found || *next < *found))
        found = next;
    if (found)
      return {found, fmt::format("To step {}, whose error stands out from those around it: {}", *found,
                                 token_text(run.labels(), shown.first_step() + *found, 24))};
  }
  return {std::nullopt, "No error stands out from those around it."};
}

/// "h2o loses 2.4 times what snapkv does, without token 379 'len', which leaves at step 3".
std::string divergence_text(const Run& run, const DecodeShown& shown, const Divergence& one,
                            const std::string& pinned) {
  const DecodeRun &mine = shown.runs()[one.run], *other = shown.pinned_run(one.run);
  std::string what = "it does in " + pinned;
  if (other == nullptr) {
    other = &shown.runs()[least_error(shown.runs()).value_or(0)];
    what = title_of(*other) + " does";
  }
  const std::string text = token_text(run.labels(), one.position, 16);
  return fmt::format("{} loses {} times what {}, without token {}{}, which {}", title_of(mine),
                     number_text(mine.error[one.step] / other->error[one.step]), what, one.position,
                     text.empty() ? "" : fmt::format(" '{}'", text),
                     fate_text(shown.now.fates[one.run], one.position));
}

/// The next run's, round the end.
PlaybackJump divergence(const Run& run, const DecodeShown& shown, const std::string& pinned) {
  if (shown.divergences.empty())
    return {std::nullopt,
            fmt::format("No policy loses more than {} times what {} for want of a token.", kDiverges,
                        shown.pinned != nullptr ? "it does in " + pinned : "the best one shown does")};
  const auto next = std::find_if(shown.divergences.begin(), shown.divergences.end(),
                                 [&](const Divergence& one) { return one.step > shown.step; });
  const Divergence& one = next != shown.divergences.end() ? *next : shown.divergences.front();
  return {one.step, fmt::format("To step {}: {}", one.step, divergence_text(run, shown, one, pinned))};
}

void DecodeSteps::begin(AppState& state, const DecodeShown& shown) {
  const Index steps = shown.steps();
  first_step_ = shown.first_step();
  const std::optional<Index> row = state.selection().row;
  if (std::exchange(followed_row_, row) != row && row && *row >= first_step_) {
    now_ = *row - first_step_;
    chosen_ = true;
  }
  now_ = chosen_ ? std::clamp<Index>(now_, 0, steps - 1) : steps - 1;
  const Index to = playback_.advance(now_, steps, state.clock());
  if (to != now_) go_to(state, to);
  if (const auto due = playback_.due()) state.wake_at(*due);
}

void DecodeSteps::go_to(AppState& state, Index step) {
  now_ = step;
  chosen_ = true;
  Selection next = state.selection();
  next.row = first_step_ + step;
  followed_row_ = next.row;
  state.select(std::move(next), "decoding step");
}

void DecodeSteps::draw(PanelContext& context, const DecodeShown& shown, const std::string& pinned) {
  AppState& state = context.state;
  const Run& run = *state.run();
  std::optional<HiddenDraw> controls(std::in_place, context.figure);
  const PlaybackHit hit = playback_buttons(playback_.playing(), now_, shown.steps(), spike(run, shown),
                                           divergence(run, shown, pinned));
  if (hit.to) go_to(state, *hit.to);
  if (hit.toggled) {
    if (playback_.playing()) {
      playback_.pause();
    } else {
      if (now_ + 1 >= shown.steps()) go_to(state, 0);
      playback_.play(state.clock());
    }
    if (const auto due = playback_.due()) state.wake_at(*due);
  }
  controls.reset();
  Index step = now_;
  if (context.figure)
    dim_text(fmt::format("step {}, position {}", step, first_step_ + step));
  else if (edit_step(run, shown.steps(), first_step_, step))
    go_to(state, step);
  for (const Divergence& one : shown.divergences)
    if (one.step == now_) elided_text(divergence_text(run, shown, one, pinned), theme().dim);
}

/// Loss of policies at every decoding step, and the content of their caches.
class DecodePanel final : public Panel {
 public:
  void draw(PanelContext& context) override;
  std::string figure_title(PanelContext&) const override {
    return "Output error of every decoding step, and what the caches hold";
  }
  std::vector<std::string> figure_settings(PanelContext& context) const override;
  std::string svg(PanelContext& context) const override;
  std::string csv(PanelContext& context) const override;
  void keep(SessionFields& fields) override;

 private:
  void draw_controls(AppState& state);
  void ask_pinned(PanelContext& context);
  DecodeShown shown();
  void draw_plot(PanelContext& context, ImVec2 size);
  void draw_list(PanelContext& context);
  void draw_left_out(bool figure);
  std::string own_name(const std::string& policy) const;
  ImU32 color_of(const std::string& policy);

  DecodeSettings settings_, counted_;  // counted_: with the queue's budget and window where they are linked
  std::vector<std::pair<std::string, std::size_t>> colors_;  // policies by their number of a colour
  DecodeQuestions questions_, pinned_questions_;
  const DecodeAnswers *now_ = nullptr, *pinned_ = nullptr;  // of this frame
  std::string pinned_name_, pinned_problem_;
  std::vector<Divergence> divergences_;  // of these views
  std::pair<std::shared_ptr<const DecodeView>, std::shared_ptr<const DecodeView>> diverging_;
  DecodeList list_;
  DecodePlot plot_;
  DecodeSteps steps_;
  std::optional<std::size_t> pointed_;  // number of the run under the mouse
};

/// A policy as it was added, without the window that it takes from the queue.
std::string DecodePanel::own_name(const std::string& policy) const {
  for (const std::string& added : settings_.policies)
    if (is_with_window(policy, added)) return added;
  return policy;
}

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

void DecodePanel::draw(PanelContext& context) {
  AppState& state = context.state;
  now_ = pinned_ = nullptr;
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
  if (const auto why = why_no_decoding(*run, state.selection().layer))
    return hint_no_dump(
        context.state,
        fmt::format("Decoding is replayed from the dump, which is not at hand: {}. Nor do these results "
                    "hold it: {}.",
                    run->why_no_dump(), *why));
  counted_ = state.as_linked(settings_);
  now_ = &questions_.ask(context, counted_);
  ask_pinned(context);
  {
    const HiddenDraw controls(context.figure);
    draw_controls(state);
  }
  if (!now_->error.empty()) return error_line(now_->error);
  if (now_->view == nullptr) return hint("Replaying the decoding steps ...");
  if (now_->view->runs.empty()) return hint("Add a policy above.");
  const StaleOverlay veil(context.veiled);
  steps_.begin(state, shown());

  const Theme& t = theme();
  const ImVec2 room = ImGui::GetContentRegionAvail();
  if (room.x < t.px(500) || room.y > t.px(420)) {
    const float line = ImGui::GetTextLineHeight();
    const float lines = pinned_ != nullptr ? 4 : 3;  // besides the runs
    const float needed =
        static_cast<float>(now_->view->runs.size()) * (line + t.px(28)) + lines * line + t.px(24);
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
    text_beside("As the run computed it");
    tip(fmt::format("Other settings, and what the caches hold, need the dump: {}", run.why_no_dump())
            .c_str());
  } else {
    edit_decoding(state, settings_);
    const std::string added = add_policy(run, counted_);
    if (!added.empty()) settings_.policies.push_back(added);
  }
  choose_beside(state);
  if (!pinned_problem_.empty()) error_line(pinned_problem_);
  if (now_->pending || (pinned_ != nullptr && pinned_->pending)) busy_mark();
}

/// The pinned run under the same settings, where there is one to be held against.
void DecodePanel::ask_pinned(PanelContext& context) {
  pinned_problem_.clear();
  const std::shared_ptr<const Run> run = context.state.subtracted();
  if (run == nullptr) return;
  pinned_name_ = run->name();
  if (const auto why = why_no_decoding(*run, context.state.selection().layer)) {
    pinned_problem_ = fmt::format("{} does not say how it decodes: {}.", run->name(), *why);
    return;
  }
  PanelContext of_pinned = context.of(run);
  pinned_ = &pinned_questions_.ask(of_pinned, counted_);
  if (!pinned_->error.empty()) pinned_problem_ = fmt::format("{}: {}", run->name(), pinned_->error);
}

DecodeShown DecodePanel::shown() {
  const bool both = pinned_ != nullptr && pinned_->view != nullptr;
  const std::pair views(now_->view, both ? pinned_->view : nullptr);
  if (std::exchange(diverging_, views) != views)
    divergences_ =
        both ? viewer::divergences(now_->view->runs, now_->fates, pinned_->view->runs, pinned_->fates)
             : viewer::divergences(now_->view->runs, now_->fates, {}, {});
  return {*now_, both ? pinned_ : nullptr, divergences_, steps_.now(),
          [this](const DecodeRun& run) { return color_of(own_name(run.policy)); }};
}

void DecodePanel::draw_plot(PanelContext& context, ImVec2 size) {
  if (const auto to = plot_.draw(context.state, shown(), size, pointed_)) steps_.go_to(context.state, *to);
}

/// Policies that cannot decode on this dump, and why.
void DecodePanel::draw_left_out(bool figure) {
  for (const LeftOut& left : now_->left_out) {
    ImGui::PushID(left.what.c_str());
    {
      const HiddenDraw controls(figure);
      if (small_button("remove"))
        std::erase(settings_.policies, own_name(left.what.substr(0, left.what.find(' '))));
      ImGui::SameLine();
    }
    dim_text(left.what + " cannot decode");
    tip(left.why.c_str());
    ImGui::PopID();
  }
}

void DecodePanel::draw_list(PanelContext& context) {
  const Run& run = *context.state.run();
  steps_.draw(context, shown(), pinned_name_);
  const DecodeShown shown = this->shown();
  if (shown.pinned != nullptr) draw_pinned_key(*context.state.subtracted());
  draw_left_out(context.figure);
  const DecodeList::Done done = list_.draw(
      context.state, shown, run.dump() != nullptr && settings_.policies.size() > 1 && !context.figure);
  pointed_ = done.pointed;
  if (done.removed.empty()) return;
  const std::string removed = own_name(done.removed);
  std::erase(settings_.policies, removed);
  std::erase_if(colors_, [&](const auto& one) { return one.first == removed; });
}

std::vector<std::string> DecodePanel::figure_settings(PanelContext& context) const {
  if (now_ == nullptr || now_->view == nullptr) return {};
  std::vector<std::string> lines;
  // The drawn runs contain only policies that exist.
  if (context.state.run()->dump() != nullptr)
    lines.push_back("evict" + evict_options_text(evict_options_of(counted_)));
  return with_pinned(std::move(lines), context.state, pinned_ != nullptr && pinned_->view != nullptr,
                     "dashed:");
}

std::string DecodePanel::svg(PanelContext& context) const {
  if (now_ == nullptr || now_->view == nullptr || now_->view->runs.empty()) return {};
  const std::vector<DecodeRun>& runs = now_->view->runs;
  report::LinePlot plot{
      .id = "decode", .title = figure_title(context), .x = {}, .y = {}, .at = {}, .lines = {}};
  for (Index step = 0; step < runs.front().steps(); ++step) plot.at.push_back(static_cast<double>(step));
  plot.x = {"decoding step", 0, std::max(1.0, plot.at.back()), false};
  std::vector<std::string> names;
  std::vector<double> all;
  const auto add = [&](const DecodeRun& run, bool pinned) {
    names.push_back(title_of(run));
    plot.lines.push_back({.name = names.back() + (pinned ? ", pinned" : ""),
                          .style = {.thin = pinned},
                          .values = run.error,
                          .markers = false});
    all.insert(all.end(), run.error.begin(), run.error.end());
  };
  const bool both = pinned_ != nullptr && pinned_->view != nullptr;
  for (const DecodeRun& run : runs) {
    add(run, false);
    const auto other = both ? same_run(pinned_->view->runs, run) : std::nullopt;
    if (other && pinned_->view->runs[*other].error.size() == plot.at.size())
      add(pinned_->view->runs[*other], true);
  }
  plot.y = log_axis("output error", all, 5);
  return report::svg_of(report::styled(std::move(plot), names));
}

std::string DecodePanel::csv(PanelContext& context) const {
  if (now_ == nullptr || now_->view == nullptr || now_->view->runs.empty()) return {};
  const Selection& selected = context.state.selection();
  const bool both = pinned_ != nullptr && pinned_->view != nullptr;
  CsvTable table(fmt::format("layer,kv_head,policy,phase,budget,step,position,output_error,cache_tokens{}",
                             both ? ",pinned_output_error" : ""));
  for (const DecodeRun& run : now_->view->runs) {
    const std::vector<Index> sizes = now_->fates.empty() ? std::vector<Index>() : cache_sizes(run);
    const auto other = both ? same_run(pinned_->view->runs, run) : std::nullopt;
    for (std::size_t s = 0; s < run.error.size(); ++s) {
      table.add(selected.layer).add(selected.kv_head).add(run.policy);
      table.add(run.append_only ? "append-only" : "decode");
      table.add(run.budget > 0 ? std::optional(run.budget) : std::nullopt);
      table.add(s).add(run.first_step + static_cast<Index>(s)).add(run.error[s]);
      table.add(sizes.empty() ? std::nullopt : std::optional(sizes[s]));
      if (both) table.add(other ? if_any(pinned_->view->runs[*other].error[s]) : std::nullopt);
      table.end_row();
    }
  }
  return table.text();
}

void DecodePanel::keep(SessionFields& fields) {
  fields.settings("settings", settings_);
  if (fields.found("settings") == nullptr) return;
  colors_.clear();
  if (settings_.policies.empty()) settings_.policies = DecodeSettings().policies;
}

}  // namespace

template <>
std::unique_ptr<Panel> make_panel<PanelKind::decode>() {
  return std::make_unique<DecodePanel>();
}

}  // namespace kvreplay::viewer
