#include "analysis/options/option.hpp"
#include "analysis/report/plots.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/model/key.hpp"
#include "viewer/panels/compared_head.hpp"
#include "viewer/panels/curve_lines.hpp"
#include "viewer/panels/curves/curve_modes.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/panels/pinned_run.hpp"
#include "viewer/panels/session_fields.hpp"
#include "viewer/questions/csv_table.hpp"
#include "viewer/questions/job_queue.hpp"
#include "viewer/questions/score_curves.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/plot.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::viewer {
namespace {

/// recall@k over the window: a line a score, and a dashed one with the reserved tokens.
class WindowPlot {
 public:
  /// `size` in pixels; a line stands at the `window` that other panels look at. Returns the score whose curve
  /// is under the mouse.
  std::optional<TokenMetric> draw(ImVec2 size, const WindowCurves& shown, const MetricSet& hidden,
                                  const Key& run, Index window, std::optional<TokenMetric> pointed,
                                  float fade);

 private:
  PlotView view_;
  Key axes_;  // what view_ belongs to
};

// The recall at one budget on every window, in place of the recall at every budget on one.

class WindowRecall {
 public:
  struct Question {
    const ComparedHead& head;
    TokenMetric reference;
    Index k;
  };

  bool shown = false;

  /// Controls for showing the plot and for the number of reserved tokens. Switching the plot on removes the
  /// exact scores, its references, from `hidden`.
  void draw_controls(const AppState& state, MetricSet& hidden);
  /// The plot, or a hint that says why there is none. Returns the score whose curve is under the mouse.
  std::optional<TokenMetric> draw(PanelContext& context, ImVec2 size, const Question& question,
                                  const MetricSet& hidden, std::optional<TokenMetric> pointed, float fade);

  std::string title(TokenMetric reference) const;
  /// A table of what was drawn last; empty where nothing was.
  std::string csv(const ComparedHead& head) const;
  void keep(SessionFields& fields);

 private:
  std::shared_ptr<const WindowCurves> look(PanelContext& context, const Question& question) const;

  Index reserve_ = 0;  // last tokens inside the k
  WindowPlot plot_;
  std::shared_ptr<const WindowCurves> curves_;  // that were drawn last
};

/// The place of the window nearest to the mouse.
std::size_t window_at(const Plot& plot, const std::vector<double>& windows) {
  const float mouse = ImGui::GetMousePos().x;
  const auto away = [&](double window) { return std::abs(plot.at(window, 0).x - mouse); };
  return static_cast<std::size_t>(std::min_element(windows.begin(), windows.end(),
                                                   [&](double a, double b) { return away(a) < away(b); }) -
                                  windows.begin());
}

void draw_hovered(const Plot& plot, const WindowCurves& shown, const WindowCurves::Curve& curve,
                  std::size_t at) {
  plot.list()->AddCircleFilled(plot.at(static_cast<double>(shown.windows[at]), curve.recall[at]),
                               theme().px(3.5F), look_of(curve.score, shown.reference).color);
  ImGui::BeginTooltip();
  ImGui::TextUnformatted(std::string(name_of(curve.score)).c_str());
  figure(fmt::format("recall@{}", shown.k).c_str(), number_text(curve.recall[at]));
  if (!curve.reserved.empty())
    figure(fmt::format("with {} reserved", shown.reserve).c_str(), number_text(curve.reserved[at]));
  figure("window", fmt::format("{}", shown.windows[at]));
  ImGui::EndTooltip();
}

std::optional<TokenMetric> WindowPlot::draw(ImVec2 size, const WindowCurves& shown, const MetricSet& hidden,
                                            const Key& run, Index window, std::optional<TokenMetric> pointed,
                                            float fade) {
  const Theme& t = theme();
  const Key axes(run, shown.reference);
  if (std::exchange(axes_, axes) != axes) view_ = {};
  const std::vector<double> windows(shown.windows.begin(), shown.windows.end());
  std::vector<const WindowCurves::Curve*> drawn;
  double highest = 0;
  for (const WindowCurves::Curve& curve : shown.curves) {
    if (hidden.contains(curve.score)) continue;
    drawn.push_back(&curve);
    for (const auto* const values : {&curve.recall, &curve.reserved})
      for (const double value : *values) highest = std::max(highest, value);
  }
  Plot plot("windows", size, {"window (queries that score)", true, 1, std::max(windows.back(), 2.0)},
            {fmt::format("recall@{} of {}", shown.k, name_of(shown.reference)), false, 0,
             highest > 0 ? 1.06 * highest : 1.0},
            view_);
  plot.vertical(static_cast<double>(window), t.accent);
  std::vector<NamedCurve> named;
  for (const WindowCurves::Curve* const curve : drawn) {
    const CurveLook look = look_of(curve->score, shown.reference);
    const bool stands_out = curve->score == pointed;
    const ImU32 color = faded(look.color, stands_out || !pointed ? fade : fade * 0.4F);
    draw_curve(plot, windows, curve->recall, color, Stroke::solid, stands_out ? 2.6F : 1.5F);
    if (!curve->reserved.empty())
      draw_curve(plot, windows, curve->reserved, color, Stroke::dashed, stands_out ? 2.6F : 1.5F);
    named.push_back({std::string(name_of(curve->score)), curve->recall, faded(look.color, fade)});
  }
  if (plot.high_corner().x - plot.low_corner().x > t.px(220))
    label_curves(plot, windows, named, static_cast<double>(window));
  if (!plot.hovered() || drawn.empty()) return std::nullopt;
  const std::size_t at = window_at(plot, windows);
  const auto away = [&](const WindowCurves::Curve* curve) {
    return std::abs(plot.at(windows[at], curve->recall[at]).y - ImGui::GetMousePos().y);
  };
  const auto* const nearest = *std::min_element(
      drawn.begin(), drawn.end(), [&](const auto* a, const auto* b) { return away(a) < away(b); });
  if (away(nearest) > t.px(9)) return std::nullopt;
  draw_hovered(plot, shown, *nearest, at);
  return nearest->score;
}

void WindowRecall::draw_controls(const AppState& state, MetricSet& hidden) {
  flow(check_width("Windows"));
  if (ImGui::Checkbox("Windows", &shown) && shown)
    for (const TokenMetric exact : {TokenMetric::exact_joint, TokenMetric::exact_remove})
      hidden.erase(exact);  // what the scores stand for on the window
  tip("The recall at the budget over the number of queries that score, from one to the whole prompt. The "
      "table "
      "is of the window that all panels look at.");
  if (!shown) return;
  const float width = theme().px(46);
  flow(width + ImGui::CalcTextSize("reserve").x + theme().px(10));
  text_beside("reserve");
  ImGui::SameLine(0, theme().px(5));
  ImGui::SetNextItemWidth(width);
  auto typed = static_cast<int>(reserve_);
  if (ImGui::InputInt("##reserve", &typed, 0, 0, ImGuiInputTextFlags_EnterReturnsTrue))
    reserve_ = std::clamp<Index>(typed, 0, std::max<Index>(state.run()->shape().l - 1, 0));
  tip("So many of the last tokens count as found, inside the budget, whatever a score says of them: dashed.");
}

std::shared_ptr<const WindowCurves> WindowRecall::look(PanelContext& context,
                                                       const Question& question) const {
  const std::shared_ptr<const Run> run = context.run();
  if (run->dump() == nullptr) {
    hint_no_dump(context.state,
                 fmt::format("Recall over windows is computed from the dump: {}.", run->why_no_dump()));
    return nullptr;
  }
  const ComparedHead& head = question.head;
  const Key of_head(head.layer, head.kv_head, head.query_head);
  const auto metrics = context.queue.ask<WindowMetrics>(
      {.key = {run->key(), "window_metrics", of_head},
       .title = fmt::format("Token metrics on every window, {}", head.title()),
       .all_cores = true},
      [run, layer = head.layer, kv_head = head.kv_head, query_head = head.query_head](JobControl& job) {
        return window_metrics(*run->head(layer, kv_head), available_metrics(*run), query_head, job.compute());
      });
  Answer<WindowCurves> found;
  if (metrics)
    found = context.queue.ask<WindowCurves>(
        {.key = {run->key(), "window_curves", of_head, question.reference, question.k, reserve_},
         .title = fmt::format("Recall over windows, {}", head.title()),
         .slot = {run->key(), "window_curves", of_head, question.reference}},
        [values = metrics.value, reference = question.reference, k = question.k, reserve = reserve_](
            JobControl& job) { return window_curves(*values, reference, k, reserve, job.workers()); });
  if (!found) {
    draw_no_facts(metrics.error.empty() ? found.error : metrics.error);
  } else if (found->windows.empty()) {
    hint("The dump holds no query of the prompt.");
    return nullptr;
  }
  return found.value;
}

std::optional<TokenMetric> WindowRecall::draw(PanelContext& context, ImVec2 size, const Question& question,
                                              const MetricSet& hidden, std::optional<TokenMetric> pointed,
                                              float fade) {
  std::optional<TokenMetric> under_mouse;
  ImGui::BeginChild("windows", size);
  curves_ = look(context, question);
  if (curves_ != nullptr)
    under_mouse = plot_.draw(size, *curves_, hidden, context.run()->key(), context.state.comparison.window,
                             pointed, fade);
  ImGui::EndChild();
  return under_mouse;
}

std::string WindowRecall::title(TokenMetric reference) const {
  const std::string reserved =
      reserve_ > 0 ? fmt::format(", dashed: the last {} reserved", counted(reserve_, "token")) : "";
  return fmt::format("Recall of {} over windows{}", name_of(reference), reserved);
}

std::string WindowRecall::csv(const ComparedHead& head) const {
  if (curves_ == nullptr) return {};
  CsvTable table("layer,kv_head,query_head,reference,score,budget,window,reserve,recall");
  for (const WindowCurves::Curve& curve : curves_->curves)
    for (const auto& [reserve, values] :
         {std::pair(Index{0}, &curve.recall), std::pair(curves_->reserve, &curve.reserved)})
      for (std::size_t i = 0; i < values->size(); ++i)
        table.row(head.layer, head.kv_head, head.query_head, name_of(curves_->reference),
                  name_of(curve.score), curves_->k, curves_->windows[i], reserve, (*values)[i]);
  return table.text();
}

void WindowRecall::keep(SessionFields& fields) {
  fields.field("shown", shown);
  fields.number("reserve", reserve_, Index{0}, Index{1} << 30);
}

/// All scores' curves over the budget, and a budget line to drag.
class CurvePlot {
 public:
  struct Done {
    std::optional<Index> budget;         ///< the line was dragged there
    std::optional<TokenMetric> pointed;  ///< the score whose curve is under the mouse
  };
  /// `size` in pixels, the line at `budget`; the score `pointed` stands out. What was zoomed into goes with
  /// another `run`, or other axes. `fade` is the opacity of all.
  Done draw(ImVec2 size, const CurveFigure& shown, const Key& run, Index budget,
            std::optional<TokenMetric> pointed, float fade);

 private:
  PlotView view_;
  Key axes_;  // what view_ belongs to
};

/// The budget under the mouse.
Index budget_at(const Plot& plot, const CurveFigure& shown) {
  return std::clamp<Index>(std::lround(plot.x_of(ImGui::GetMousePos().x)), 1, shown.own->n);
}

void draw_hovered(const Plot& plot, const CurveFigure& shown, std::optional<TokenMetric> pointed) {
  const ScoreCurves::Curve* curve = plot.hovered() && pointed ? shown.own->find(*pointed) : nullptr;
  if (curve == nullptr) return;
  const Index k = budget_at(plot, shown);
  const double value = shown.at(*curve, k);
  plot.list()->AddCircleFilled(plot.at(static_cast<double>(k), value), theme().px(3.5F),
                               look_of(*pointed, shown.own->reference).color);
  ImGui::BeginTooltip();
  ImGui::TextUnformatted(std::string(name_of(*pointed)).c_str());
  figure(std::string(kCurveModes[shown.mode].title).c_str(), number_text(value));
  if (const ScoreCurves::Curve* other = shown.pinned_curve(*pointed); other != nullptr && !shown.less)
    figure("pinned", pinned_text(value, other->exact.at(k).*kCurveModes[shown.mode].at));
  figure("budget", budget_text(k, shown.own->n));
  ImGui::EndTooltip();
}

/// The pinned run's, where they are shown beside the others.
void draw_pinned(Plot& plot, const CurveFigure& shown, std::optional<TokenMetric> pointed, float fade) {
  if (shown.pinned == nullptr || shown.less) return;
  const std::vector<double> budgets(shown.pinned->budgets.begin(), shown.pinned->budgets.end());
  for (const ScoreCurves::Curve& curve : shown.pinned->curves) {
    if (!shown.shows(curve.score)) continue;
    const CurveLook look = look_of(curve.score, shown.own->reference);
    const float opacity = !pointed || pointed == curve.score ? fade : fade * 0.4F;
    draw_curve(plot, budgets, drawn_values(curve, shown.mode, shown.log),
               faded(look.color, opacity * kPinnedOpacity), pinned_stroke(look.stroke), kPinnedThickness);
  }
}

/// The curves that are shown, later ones above earlier ones: the one pointed at lies above the others, the
/// best possible below them.
std::vector<const ScoreCurves::Curve*> by_depth(const CurveFigure& shown,
                                                std::optional<TokenMetric> pointed) {
  std::vector<const ScoreCurves::Curve*> order;
  for (const ScoreCurves::Curve& curve : shown.own->curves)
    if (shown.shows(curve.score)) order.push_back(&curve);
  const auto depth = [&](const ScoreCurves::Curve* curve) {
    return curve->score == pointed ? 2 : curve->score == shown.own->reference ? 0 : 1;
  };
  std::stable_sort(order.begin(), order.end(), [&](auto* a, auto* b) { return depth(a) < depth(b); });
  return order;
}

CurvePlot::Done CurvePlot::draw(ImVec2 size, const CurveFigure& shown, const Key& run, Index budget,
                                std::optional<TokenMetric> pointed, float fade) {
  const Theme& t = theme();
  const ScoreCurves& all = *shown.own;
  const Key axes(run, all.reference, shown.mode, shown.log, shown.less);
  if (std::exchange(axes_, axes) != axes) view_ = {};

  Done done;
  const std::vector<double> budgets(all.budgets.begin(), all.budgets.end());
  const ValueExtent extent = shown.extent();
  Plot plot("plot", size, {"budget (tokens kept)", true, 1, static_cast<double>(std::max<Index>(all.n, 2))},
            {shown.axis(), shown.log, extent.low, extent.high}, view_);
  if (shown.less)
    plot.horizontal(0, t.faint);
  else
    draw_curve(plot, budgets, chance(all, shown.mode), faded(t.faint, fade), Stroke::dotted, 1.2F);
  draw_pinned(plot, shown, pointed, fade);
  const std::vector<const ScoreCurves::Curve*> order = by_depth(shown, pointed);
  for (const ScoreCurves::Curve* curve : order) {
    const CurveLook look = look_of(curve->score, all.reference);
    const bool stands_out = curve->score == pointed;
    draw_curve(plot, budgets, shown.drawn(*curve),
               faded(look.color, stands_out || !pointed ? fade : fade * 0.4F), look.stroke,
               stands_out ? 2.6F : 1.5F);
  }
  if (plot.high_corner().x - plot.low_corner().x > t.px(220)) {
    std::vector<NamedCurve> named;
    for (const ScoreCurves::Curve* curve : order)
      named.push_back({std::string(name_of(curve->score)), shown.drawn(*curve),
                       faded(look_of(curve->score, all.reference).color, fade)});
    if (!shown.less) named.push_back({"chance", chance(all, shown.mode), faded(t.dim, fade)});
    label_curves(plot, budgets, named, static_cast<double>(budget));
  }
  draw_hovered(plot, shown, pointed);

  auto k = static_cast<double>(budget);
  if (plot.drag_vertical("budget", k, t.accent)) done.budget = std::lround(k);
  // The line's own button comes last: the mouse is over it or over the plot, never over both.
  if (!plot.hovered()) return done;
  const Index at = budget_at(plot, shown);
  float least = t.px(9);
  for (const ScoreCurves::Curve* curve : order) {
    const float distance =
        std::abs(plot.at(static_cast<double>(at), shown.at(*curve, at)).y - ImGui::GetMousePos().y);
    if (distance < least) {
      least = distance;
      done.pointed = curve->score;
    }
  }
  return done;
}

constexpr std::size_t kPoints = 256;  // of a curve as it is drawn

MetricSet hidden_at_first() {
  MetricSet hidden;
  for (const TokenMetric metric : kTokenMetrics.all())
    if (kTokenMetrics[metric].kind != MetricKind::score) hidden.insert(metric);
  return hidden;
}

/// Gain and loss at every budget if a score's largest tokens are kept, all scores in one plot. For recall,
/// also a plot over all window lengths at one budget.
class CurvesPanel final : public Panel {
 public:
  void draw(PanelContext& context) override;
  std::string figure_title(PanelContext& context) const override;
  std::vector<std::string> figure_settings(PanelContext& context) const override {
    return with_pinned({}, context.state, beside() != nullptr, less_ ? "less" : "dashed:");
  }
  std::string svg(PanelContext& context) const override;
  std::string csv(PanelContext& context) const override;
  void keep(SessionFields& fields) override;

 private:
  bool look(PanelContext& context);
  const ScoreCurves& curves() const { return *shown_.get(); }
  /// The pinned run's curves, where they are drawn; null: none.
  const ScoreCurves* beside() const { return by_window() ? nullptr : pinned_.beside(shown_); }
  void draw_controls(AppState& state, const MetricSet& available);
  void draw_plot(PanelContext& context, ImVec2 size);
  bool by_window() const { return windows_.shown && mode_ == CurveMode::recall; }
  CurveFigure shown_figure() const;
  void edit_budget(AppState& state, Index k);
  void draw_table(PanelContext& context);
  /// The budget line: that of What if where it counts tokens, else a line of its own.
  Index budget(const AppState& state) const;
  void set_budget(AppState& state, Index k);

  CurveMode mode_ = CurveMode::recall;
  std::array<bool, kCurveModes.size()> log_{false, false, true};
  MetricSet hidden_ = hidden_at_first();
  bool less_ = false;  // where a run is pinned: what is other, in place of both
  WindowRecall windows_;
  CurvePlot plot_;
  ComparedFacts<ScoreCurves> shown_, pinned_;
  std::optional<TokenMetric> pointed_, pointed_next_;  // under the mouse, in the plot or in the table
};

void CurvesPanel::keep(SessionFields& fields) {
  fields.name("mode", mode_, in_table(kCurveModes));
  fields.field("less", less_);
  fields.part("windows", windows_);
  if (!fields.reads()) {
    fields.written["log_y"] = log_;
    fields.written["hidden"] = nlohmann::json::array();
    for (const TokenMetric metric : kTokenMetrics.all())
      if (hidden_.contains(metric)) fields.written["hidden"].push_back(name_of(metric));
  }
  if (const nlohmann::json* log = fields.found("log_y"); log != nullptr && log->is_array())
    for (std::size_t i = 0; i < std::min(log->size(), log_.size()); ++i)
      if ((*log)[i].is_boolean()) log_[i] = (*log)[i].get<bool>();
  const nlohmann::json* hidden = fields.found("hidden");
  if (hidden == nullptr || !hidden->is_array()) return;
  hidden_ = {};
  for (const nlohmann::json& name : *hidden)
    if (const auto metric = name.is_string() ? kTokenMetrics.named(name.get<std::string>()) : std::nullopt)
      hidden_.insert(*metric);
}

Index CurvesPanel::budget(const AppState& state) const { return compared_budget(state, curves().n); }

/// A line stands at a number of tokens, which a share would miss.
void CurvesPanel::set_budget(AppState& state, Index k) {
  state.budget.sigma_budget = false;
  state.budget.budget = std::clamp<Index>(k, 1, curves().n);
}

void CurvesPanel::draw(PanelContext& context) {
  AppState& state = context.state;
  const std::optional<MetricSet> available = compared_metrics(state);
  if (!available) return;
  {
    const HiddenDraw controls(context.figure);
    draw_controls(state, *available);
  }
  if (!is_there(state.comparison.reference, *available) || !look(context)) return;
  if (curves().n == 0) return hint("There is no token to keep.");
  const StaleOverlay veil(context.veiled);
  pointed_ = std::exchange(pointed_next_, std::nullopt);

  const Theme& t = theme();
  const ImVec2 room = ImGui::GetContentRegionAvail();
  if (room.x < t.px(300)) {
    draw_plot(context, {room.x, std::max({room.y * 0.6F, room.y - t.px(190), t.px(150)})});
    draw_table(context);
    return;
  }
  const float table = std::clamp(room.x * 0.41F, t.px(150), t.px(218));
  const ImVec2 at = ImGui::GetCursorPos();
  draw_plot(context, {room.x - table - t.px(4), room.y});
  ImGui::SetCursorPos({at.x + room.x - table, at.y});
  ImGui::BeginChild("table", {table, room.y});
  draw_table(context);
  ImGui::EndChild();
}

bool CurvesPanel::look(PanelContext& context) {
  const TokenMetric reference = context.state.comparison.reference;
  const auto compute = [reference](const std::shared_ptr<const HeadSummary>& head, JobControl& job) {
    return score_curves(*head->tokens, head->metrics, reference, head->l, kPoints, job.workers());
  };
  const std::string key = fmt::format("curves/{}", name_of(reference)),
                    title = fmt::format("Curves against {}", name_of(reference));
  pinned_.look_pinned(context, {reference}, key, title, compute);
  return shown_.look(context, key, title, compute);
}

void CurvesPanel::draw_controls(AppState& state, const MetricSet& available) {
  std::array<std::string_view, kCurveModes.size()> names;
  for (const CurveModeFacts& one : kCurveModes) names[static_cast<std::size_t>(one.id)] = one.button;
  auto chosen = static_cast<std::size_t>(mode_);
  ImGui::BeginGroup();
  if (segments("mode", names, chosen)) mode_ = kCurveModes.all()[chosen];
  ImGui::EndGroup();
  tip(kCurveModes[mode_].meaning);
  const float rest = check_width("Log") + ImGui::CalcTextSize("vs").x + theme().px(18);
  flow(theme().px(110) + rest);
  text_beside("vs");
  ImGui::SameLine(0, theme().px(5));
  const float width = (ImGui::GetContentRegionAvail().x - check_width("Log")) / theme().scale - 10;
  choose_metric("##reference", *state.run(), available, state.comparison.reference,
                std::clamp(width, 90.0F, 150.0F));
  if (mode_ == CurveMode::recall) windows_.draw_controls(state, hidden_);
  if (by_window()) return;
  flow(check_width("Log"));
  ImGui::BeginDisabled(less_ && state.subtracted() != nullptr);
  ImGui::Checkbox("Log", &log_[static_cast<std::size_t>(mode_)]);
  ImGui::EndDisabled();
  tip("Logarithmic y axis.");
  choose_beside(state);
  if (state.subtracted() == nullptr) return;
  flow(check_width("Less"));
  ImGui::Checkbox("Less", &less_);
  tip("This run's curves less the pinned one's, in place of both");
}

CurveFigure CurvesPanel::shown_figure() const {
  const ScoreCurves* pinned = beside();
  if (pinned != nullptr && (pinned->reference != curves().reference || pinned->n != curves().n))
    pinned = nullptr;
  const bool less = less_ && pinned != nullptr;
  return {&curves(), pinned, less, mode_, !less && log_[static_cast<std::size_t>(mode_)], hidden_};
}

void CurvesPanel::draw_plot(PanelContext& context, ImVec2 size) {
  AppState& state = context.state;
  const float fade = shown_.pending() ? 0.45F : 1;
  if (by_window()) {
    pointed_next_ = windows_.draw(context, size, {shown_.head(), curves().reference, budget(state)}, hidden_,
                                  pointed_, fade);
    return;
  }
  const CurvePlot::Done done = plot_.draw(size, shown_figure(), shown_.run(), budget(state), pointed_, fade);
  if (done.budget) set_budget(state, *done.budget);
  pointed_next_ = done.pointed;
}

void CurvesPanel::edit_budget(AppState& state, Index k) {
  const Theme& t = theme();
  auto typed = static_cast<int>(k);
  text_beside("at");
  ImGui::SameLine(0, t.px(5));
  ImGui::SetNextItemWidth(t.px(58));
  ImGui::PushFont(mono_font());
  if (ImGui::InputInt("##budget", &typed, 0, 0, ImGuiInputTextFlags_EnterReturnsTrue))
    set_budget(state, typed);
  ImGui::PopFont();
  tip("The budget of all panels, in tokens. Drag the line, or type and press Enter.");
  ImGui::SameLine(0, t.px(5));
  dim_text(fmt::format("= {:.3g} %", 100.0 * static_cast<double>(k) / static_cast<double>(curves().n)));
}

void CurvesPanel::draw_table(PanelContext& context) {
  AppState& state = context.state;
  const Index k = budget(state);
  if (context.figure)
    dim_text(fmt::format("at {}", budget_text(k, curves().n)));
  else
    edit_budget(state, k);
  if (shown_.pending()) busy_mark();

  const std::string& whose = shown_.head().whose;
  if (!whose.empty()) {
    ImGui::PushTextWrapPos(0);
    dim_text(whose);
    ImGui::PopTextWrapPos();
    tip("Whose values these are. The head bar selects one query head of the group.");
  }
  if (const std::shared_ptr<const Run> pinned = state.subtracted(); pinned && beside() != nullptr) {
    if (less_)
      elided_text(fmt::format("less {}", pinned->name()), theme().dim);
    else
      draw_pinned_key(*pinned);
  }
  draw_curve_rows(shown_figure(), k, hidden_, pointed_next_);
}

std::string CurvesPanel::figure_title(PanelContext& context) const {
  if (by_window()) return windows_.title(context.state.comparison.reference);
  const std::string title = fmt::format("{} of every score against {}, by budget", kCurveModes[mode_].title,
                                        name_of(context.state.comparison.reference));
  const std::shared_ptr<const Run> pinned = context.state.subtracted();
  if (!pinned || beside() == nullptr) return title;
  return less_ ? less_than_pinned(title, *pinned) : fmt::format("{}, dashed: {}", title, pinned->name());
}

std::string CurvesPanel::svg(PanelContext& context) const {
  if (shown_.of(context.state.run().get()) == nullptr || by_window()) return {};
  const CurveFigure shown = shown_figure();
  const ValueExtent extent = shown.extent();
  const auto n = static_cast<double>(std::max<Index>(curves().n, 2));
  report::LinePlot plot{.id = "curves",
                        .title = figure_title(context),
                        .x = {"budget (tokens kept)", 1, n, true},
                        .y = {shown.axis(), extent.low, extent.high, shown.log},
                        .at = {curves().budgets.begin(), curves().budgets.end()},
                        .lines = {}};
  std::vector<std::string> names;
  const auto add = [&](const ScoreCurves::Curve& curve, std::vector<double> values, bool pinned) {
    names.emplace_back(name_of(curve.score));
    plot.lines.push_back({.name = names.back() + (pinned ? ", pinned" : ""),
                          .style = {.thin = pinned},
                          .values = std::move(values),
                          .markers = false});
  };
  for (const ScoreCurves::Curve& curve : curves().curves) {
    if (!shown.shows(curve.score)) continue;
    add(curve, shown.drawn(curve), false);
    if (const ScoreCurves::Curve* other = shown.less ? nullptr : shown.pinned_curve(curve.score))
      add(*other, drawn_values(*other, shown.mode, shown.log), true);
  }
  return report::svg_of(report::styled(std::move(plot), names));
}

std::string CurvesPanel::csv(PanelContext& context) const {
  const ScoreCurves* all = shown_.of(context.state.run().get());
  if (all == nullptr) return {};
  const ComparedHead& head = shown_.head();
  if (by_window()) return windows_.csv(head);
  const ScoreCurves* pinned = shown_figure().pinned;
  using Curve = ScoreCurves::Curve;
  CsvTable table(fmt::format("layer,kv_head,query_head,reference,score,budget,recall,mass,loss{}",
                             pinned != nullptr ? ",pinned_recall,pinned_mass,pinned_loss" : ""));
  for (const Curve& curve : all->curves) {
    const Curve* other = pinned != nullptr ? pinned->find(curve.score) : nullptr;
    for (std::size_t i = 0; i < all->budgets.size(); ++i) {
      table.add(head.layer).add(head.kv_head).add(head.query_head).add(name_of(all->reference));
      table.add(name_of(curve.score)).add(all->budgets[i]);
      const auto values = {&Curve::recall, &Curve::mass, &Curve::loss};
      for (const auto value : values) table.add((curve.*value)[i]);
      if (pinned != nullptr)
        for (const auto value : values)
          table.add(other != nullptr ? std::optional((other->*value)[i]) : std::nullopt);
      table.end_row();
    }
  }
  return table.text();
}

}  // namespace

template <>
std::unique_ptr<Panel> make_panel<PanelKind::curves>() {
  return std::make_unique<CurvesPanel>();
}

}  // namespace kvreplay::viewer
