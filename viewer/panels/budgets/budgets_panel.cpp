#include "analysis/options/option.hpp"
#include "analysis/results/kept_text.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/panels/curve_lines.hpp"
#include "viewer/panels/head_grid.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/panels/policy_controls.hpp"
#include "viewer/questions/budgets.hpp"
#include "viewer/questions/command_text.hpp"
#include "viewer/questions/csv_table.hpp"
#include "viewer/questions/head_figures.hpp"
#include "viewer/questions/named_choices.hpp"
#include "viewer/questions/policy_settings.hpp"
#include "viewer/questions/run.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/plot.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <imgui.h>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvreplay::viewer {
namespace {

struct BudgetPlotContent {
  Key key;  ///< says all that the curves depend on
  Index heads = 0, selected = 0;
  std::string title;  ///< of the loss axis
  std::string head;   ///< the selected one's name
  double sigma = 0;   ///< at which methods share
  Index l = 1;
  /// Budget that a method gives the selected head, and the resulting loss.
  struct Point {
    std::string method;
    double budget = 0, loss = 0;
    ImU32 color = 0;
    bool chosen = false;
  };
  std::vector<Point> points;
};

/// The selected head among the others: its loss at every budget, on log axes, or what it keeps at every
/// compression.
class BudgetPlot {
 public:
  /// Within `size` pixels.
  void draw(ImVec2 size, const BudgetPlotContent& content, BudgetFigures& source);
  bool shows_shares = false;

 private:
  struct Curve {
    std::vector<double> budgets, losses;  ///< thinned for the screen
  };
  void take_curves(const BudgetPlotContent& content, BudgetFigures& source);
  void draw_losses(ImVec2 size, const BudgetPlotContent& content, BudgetFigures& source);
  void draw_shares(ImVec2 size, const BudgetPlotContent& content);

  Key key_;
  std::vector<Curve> curves_;
  std::vector<std::vector<double>> kept_;  ///< [heads], by sigma
  double low_ = 1e-3, high_ = 1;           ///< of all losses shown
  Index l_ = 1;
  PlotView view_, shares_view_;
};

/// More curves than this are a haze that says nothing.
constexpr Index kMostCurves = 128;
/// Points of a curve, evenly spaced on a log axis.
constexpr double kPointsPerDecade = 80;
/// The axis shows so much of a loss that falls to 0 at the end.
constexpr double kLeastLossShare = 1e-3;

std::vector<std::size_t> places(std::size_t end) {
  std::vector<std::size_t> found;
  for (double b = 1; b < static_cast<double>(end); b *= std::pow(10.0, 1 / kPointsPerDecade)) {
    const auto place = static_cast<std::size_t>(b);
    if (found.empty() || found.back() != place) found.push_back(place);
  }
  if (end > 1 && (found.empty() || found.back() != end - 1)) found.push_back(end - 1);
  return found;
}

/// The method whose point is near the mouse; null where none is. Draws all of them.
const BudgetPlotContent::Point* draw_points(
    Plot& plot, const BudgetPlotContent& content,
    const std::function<ImVec2(const BudgetPlotContent::Point&)>& at) {
  const Theme& t = theme();
  const ImVec2 mouse = ImGui::GetIO().MousePos;
  const BudgetPlotContent::Point* near = nullptr;
  float nearest = t.px(9);
  for (const BudgetPlotContent::Point& point : content.points) {
    const ImVec2 pixel = at(point);
    const float radius = t.px(point.chosen ? 5.5F : 4.0F);
    plot.list()->AddCircleFilled(pixel, radius + t.px(1.5F), t.window);
    plot.list()->AddCircleFilled(pixel, radius, point.color);
    const float distance = std::hypot(mouse.x - pixel.x, mouse.y - pixel.y);
    if (plot.hovered() && distance < nearest) {
      nearest = distance;
      near = &point;
    }
  }
  return near;
}

void point_tip(const BudgetPlotContent::Point& point) {
  ImGui::TextUnformatted(shown_name(point.method).c_str());
  figure("budget", fmt::format("{:.0f}", point.budget));
  figure("loss", number_text(point.loss));
}

void BudgetPlot::take_curves(const BudgetPlotContent& content, BudgetFigures& source) {
  const Key key(content.key, content.heads > kMostCurves ? content.selected : Index{-1});
  if (key_ == key) return;
  key_ = key;
  curves_.assign(content.heads, {});
  kept_.assign(content.heads, {});
  low_ = INFINITY;
  high_ = 0;
  for (Index head = 0; head < content.heads; ++head) {
    if (content.heads > kMostCurves && head != content.selected) continue;
    kept_[head] = source.kept(head);
    const std::vector<double>& loss = source.loss(head);
    if (loss.size() < 2) continue;
    l_ = std::ssize(loss) - 1;
    Curve& curve = curves_[head];
    for (const std::size_t b : places(loss.size())) {
      curve.budgets.push_back(static_cast<double>(b));
      curve.losses.push_back(loss[b]);
    }
    high_ = std::max(high_, loss[1]);
    for (const double value : curve.losses)
      if (value > loss[1] * kLeastLossShare) low_ = std::min(low_, value);
  }
  if (!(high_ > 0)) high_ = 1;
  low_ = std::clamp(low_, high_ * kLeastLossShare, high_ * 0.5);
}

void BudgetPlot::draw(ImVec2 size, const BudgetPlotContent& content, BudgetFigures& source) {
  take_curves(content, source);
  const auto selected = static_cast<std::size_t>(content.selected);
  const bool known = selected < curves_.size() &&
                     !(shows_shares ? kept_[selected].empty() : curves_[selected].budgets.empty());
  if (known) return shows_shares ? draw_shares(size, content) : draw_losses(size, content, source);
  ImGui::BeginChild("no curve", size);
  const bool waits = source.pending() || source.missing() > 0;
  hint(shows_shares ? waits ? "The heads' loss curves are being computed."
                            : "The results have no profile of lu under this order."
       : waits      ? "The selected head's loss curve is being computed."
                    : "There is no loss curve of the selected head.");
  ImGui::EndChild();
}

void BudgetPlot::draw_losses(ImVec2 size, const BudgetPlotContent& content, BudgetFigures& source) {
  const Theme& t = theme();
  const auto selected = static_cast<std::size_t>(content.selected);
  const PlotAxis x{"tokens kept", true, 1, static_cast<double>(std::max<Index>(l_, 2))};
  const PlotAxis y{content.title, true, low_ * 0.8, high_ * 1.25};
  Plot plot("curves", size, x, y, view_);
  for (std::size_t h = 0; h < curves_.size(); ++h)
    if (h != selected) plot.line(curves_[h].budgets, curves_[h].losses, faded(t.faint, 0.45F), 1.0F);
  plot.line(curves_[selected].budgets, curves_[selected].losses, t.text, 1.8F);
  // The axis begins at one token.
  const auto* const near = draw_points(
      plot, content, [&](const auto& point) { return plot.at(std::max(point.budget, 1.0), point.loss); });
  if (!plot.hovered()) return;
  ImGui::BeginTooltip();
  if (near != nullptr) {
    point_tip(*near);
  } else {
    const std::vector<double>& loss = source.loss(content.selected);
    const auto budget = static_cast<std::size_t>(std::clamp(std::round(plot.x_of(ImGui::GetIO().MousePos.x)),
                                                            0.0, static_cast<double>(loss.size() - 1)));
    figure("budget", fmt::format("{}", budget));
    figure("loss", number_text(loss[budget]));
  }
  ImGui::EndTooltip();
}

void BudgetPlot::draw_shares(ImVec2 size, const BudgetPlotContent& content) {
  const Theme& t = theme();
  const std::vector<double>& mine = kept_[content.selected];
  std::vector<double> sigmas(mine.size());
  for (std::size_t i = 0; i < sigmas.size(); ++i) sigmas[i] = BudgetProfile::sigma(static_cast<Index>(i));
  Plot plot("shares", size, {"sigma: share of all tokens evicted", false, 0, 1},
            {fmt::format("share kept by lu, {}", content.head), false, 0, 1.02}, shares_view_);
  const double ends[] = {0, 1}, even[] = {1, 0};
  draw_curve(plot, ends, even, t.faint, Stroke::dashed, 1.2F);
  for (std::size_t h = 0; h < kept_.size(); ++h)
    if (h != static_cast<std::size_t>(content.selected) && !kept_[h].empty())
      plot.line(sigmas, kept_[h], faded(t.faint, 0.45F), 1.0F);
  plot.line(sigmas, mine, t.text, 1.8F);
  plot.vertical(content.sigma, faded(t.faint, 0.8F));
  const auto l = static_cast<double>(std::max<Index>(content.l, 1));
  const auto* const near =
      draw_points(plot, content, [&](const auto& point) { return plot.at(content.sigma, point.budget / l); });
  if (!plot.hovered()) return;
  ImGui::BeginTooltip();
  if (near != nullptr) {
    point_tip(*near);
  } else {
    const auto at =
        static_cast<std::size_t>(std::clamp(std::round(100 * plot.x_of(ImGui::GetIO().MousePos.x)) - 1, 0.0,
                                            static_cast<double>(mine.size() - 1)));
    figure("sigma", fmt::format("{:.2f}", sigmas[at]));
    figure("kept by lu", number_text(mine[at]));
    figure("evenly", number_text(1 - sigmas[at]));
  }
  ImGui::EndTooltip();
}

std::string changed_text(const BudgetSettings& settings) {
  std::vector<std::string> changed;
  if (settings.normalise) changed.push_back(settings.normalised() ? "normalised by layer" : "not normalised");
  if (settings.sinks) changed.push_back(fmt::format("sinks {}", *settings.sinks));
  if (settings.recent) changed.push_back(fmt::format("recent {}", *settings.recent));
  if (settings.floor) changed.push_back(fmt::format("floor {:.1f} %", 100 * *settings.floor));
  return fmt::format("{}", fmt::join(changed, ", "));
}

/// Defaults of the policy variant, and controls that override them.
void edit_more(const Run& run, BudgetSettings& settings) {
  if (!settings_button(changed_text(settings))) return;
  const BudgetSemanticsFacts& own = kBudgetSemantics[settings.semantics];
  const Index l = run.shape().l;
  settings_row(budget_option::normalise);
  const std::string now = settings.normalise ? OptionValue<Normalise>::text(*settings.normalise)
                                             : "default: " + OptionValue<Normalise>::text(own.normalise);
  if (const auto at = combo("##normalise", now, {{.name = "default"}, {.name = "none"}, {.name = "layer"}})) {
    settings.normalise.reset();
    if (*at > 0) settings.normalise = *at == 1 ? Normalise::none : Normalise::layer;
  }
  settings_row(budget_option::sinks);
  edit_optional(budget_option::sinks, settings.sinks, fmt::format("default: {}", own.sinks), l);
  settings_row(budget_option::recent);
  edit_optional(budget_option::recent, settings.recent,
                own.keeps_window ? "default: the window" : "default: 0", l);
  settings_row(budget_option::floor);
  auto floor = static_cast<float>(settings.floor.value_or(own.floor));
  ImGui::SetNextItemWidth(-FLT_MIN);
  if (ImGui::SliderFloat("##floor", &floor, 0, 0.2F, "%.3f"))
    settings.floor = std::clamp(std::round(static_cast<double>(floor) * 1000) / 1000, 0.0, 0.999);
  end_settings();
}

/// Controls of order, normalisation, semantics, pins and total (where linked, the queue's as a share), in a
/// row that wraps. The run must have its dump.
void edit_budgets(const Run& run, KeptBudget& queue, BudgetSettings& settings) {
  const Theme& t = theme();
  std::vector<Choice> orders = {choice_of(EvictionBase::snapkv)};
  orders.front().group = "A policy";
  for (const TokenMetric metric : kTokenMetrics.all())
    if (metrics_of(*run.dump()).contains(metric)) orders.push_back(choice_of(metric));
  const auto named = [&](const Choice& one) { return one.name == settings.order.name; };
  auto order = static_cast<std::size_t>(std::find_if(orders.begin(), orders.end(), named) - orders.begin());
  if (choose("##order", orders, order, 112)) settings.order = parse_order(orders[order].name, {});
  tip(budget_option::order.meaning.data());

  flow(t.px(82));
  choose("##semantics", kBudgetSemantics, settings.semantics, 82);
  tip("In whose setting, and whose pyramid and ada. The budgets of official and kvpress do not keep to the "
      "total "
      "exactly.");
  edit_more(run, settings);

  flow(t.px(190));
  ImGui::SetNextItemWidth(
      std::clamp(ImGui::GetContentRegionAvail().x - link_width() - t.px(2), t.px(120), t.px(260)));
  const double before = settings.sigma;
  ImGui::PushFont(mono_font());
  edit_kept_share(settings.sigma, "kept %.1f %%");
  ImGui::PopFont();
  if (settings.linked && settings.sigma != before) queue = {.sigma_budget = true, .sigma = settings.sigma};
  tip("The share of all heads' tokens that is kept, divided between the heads");
  ImGui::SameLine(0, 0);
  link_toggle(settings.linked);
}

/// Controls of a result folder's order and total, of those that it has.
void choose_budgets(const Run& run, const BudgetResults& results, std::string& order, std::string& sigma) {
  const auto one_of = [](const char* id, const std::vector<std::string>& names, std::string& chosen,
                         float width, std::string (*label_of)(std::string_view)) {
    std::vector<std::string> labels;
    for (const std::string& name : names) labels.push_back(label_of(name));
    const std::vector<std::string_view> views(labels.begin(), labels.end());
    auto at = static_cast<std::size_t>(std::find(names.begin(), names.end(), chosen) - names.begin());
    if (at < names.size() && choose(id, views, at, width)) chosen = names[at];
  };
  one_of("##order", results.orders(), order, 112, [](std::string_view name) { return std::string(name); });
  tip(budget_option::order.meaning.data());
  flow(theme().px(90));
  ImGui::AlignTextToFramePadding();
  one_of("##sigma", results.sigmas(order), sigma, 100, kept_text);
  tip("The share of all heads' tokens that is kept, divided between the heads");
  flow(ImGui::CalcTextSize("as the result folder has them").x);
  text_beside("as the result folder has them");
  tip(("Other totals are computed from the dump, and this run has none: " + run.why_no_dump()).c_str());
}

std::string tip_of(const std::string& method) {
  const auto known = kBudgetMethods.named(method);
  if (!known) return {};
  const BudgetMethodFacts& facts = kBudgetMethods[*known];
  return std::string(facts.meaning) +
         (facts.is_oracle ? ". It looks at the decoding steps that it is judged on" : "");
}

std::string excess_text(double excess) {
  return std::abs(excess) < 1 ? fmt::format("{:+.1f} %", 100 * excess)
                              : fmt::format("{:+.0f} %", 100 * excess);
}

/// Heads that the share is of: not those of layers that a run left out.
std::ptrdiff_t known_heads(const BudgetShare& share) {
  return std::count_if(share.loss.begin(), share.loss.end(), [](double loss) { return !std::isnan(loss); });
}

/// The smallest and the largest budget.
std::pair<Index, Index> ends_of(const BudgetShare& share) {
  std::pair<Index, Index> ends{share.budgets.empty() ? 0 : std::numeric_limits<Index>::max(), 0};
  for (std::size_t h = 0; h < share.budgets.size(); ++h)
    if (!std::isnan(share.loss[h]))
      ends = {std::min(ends.first, share.budgets[h]), std::max(ends.second, share.budgets[h])};
  return ends;
}

struct MethodColumn {
  const char *name, *about;
};
/// The most telling first, which is also who stays where there is no room.
constexpr std::array<MethodColumn, 4> kMethodColumns = {{
    {"loss", "Total loss: the sum of all heads' eviction loss at their budgets"},
    {"excess", "Total loss above that of optimal"},
    {"here", "Tokens that the selected head keeps"},
    {"budgets", "Tokens kept by the head of smallest and of largest budget"},
}};

struct MethodRow {
  std::string name;
  std::array<std::string, kMethodColumns.size()> texts;  // empty where not known yet
};

std::vector<MethodRow> rows_of(const BudgetFigures& figures, const std::vector<std::string>& methods,
                               Index selected) {
  const BudgetShare* best = figures.find(std::string(name_of(BudgetMethod::optimal)));
  std::vector<double> losses;
  for (const std::string& name : methods)
    if (const BudgetShare* share = figures.find(name)) losses.push_back(share->total_loss);
  const NumberColumn loss(losses);
  std::vector<MethodRow> rows;
  for (const std::string& name : methods) {
    MethodRow& row = rows.emplace_back();
    row.name = shown_name(name);
    const BudgetShare* share = figures.find(name);
    if (share == nullptr) continue;
    row.texts[0] = loss.text(share->total_loss);
    if (best != nullptr && best->total_loss > 0)
      row.texts[1] = share == best ? "0 %" : excess_text(share->total_loss / best->total_loss - 1);
    if (static_cast<std::size_t>(selected) < share->budgets.size())
      row.texts[2] = std::to_string(share->budgets[selected]);
    const auto [least, most] = ends_of(*share);
    row.texts[3] = least == most ? std::to_string(least) : fmt::format("{}\xE2\x80\x93{}", least, most);
  }
  return rows;
}

float names_width(const std::vector<MethodRow>& rows) {
  float width = ImGui::CalcTextSize("method").x;
  for (const MethodRow& row : rows)
    width = std::max(
        width, ImGui::GetTextLineHeight() * 0.6F + theme().px(5) + ImGui::CalcTextSize(row.name.c_str()).x);
  return width;
}

/// Columns that stand whole beside the names, all equally wide.
std::vector<std::size_t> columns_with_room(const std::vector<MethodRow>& rows) {
  const float padding = 2 * ImGui::GetStyle().CellPadding.x;
  const float room = ImGui::GetContentRegionAvail().x - names_width(rows) - padding;
  std::vector<std::size_t> columns;
  float widest = 0;
  for (std::size_t c = 0; c < kMethodColumns.size(); ++c) {
    float width = std::max(widest, ImGui::CalcTextSize(kMethodColumns[c].name).x);
    for (const MethodRow& row : rows) width = std::max(width, mono_width(row.texts[c]));
    if (c > 0 && static_cast<float>(columns.size() + 1) * (width + padding) > room) break;
    widest = width;
    columns.push_back(c);
  }
  return columns;
}

/// "waits for 3 more heads"; empty where none is missing.
std::string progress_of(const BudgetFigures& figures) {
  if (figures.missing() == 0) return {};
  return fmt::format("waits for {} more head{}", figures.missing(), figures.missing() == 1 ? "" : "s");
}

/// A row a method with its loss, what the selected head keeps and the budgets' ends; a click sets `chosen`.
void draw_budget_table(const BudgetFigures& figures, const std::vector<std::string>& methods, Index selected,
                       std::string& chosen) {
  const Theme& t = theme();
  ImGui::PushStyleVar(ImGuiStyleVar_CellPadding, {t.px(4), t.px(1.5F)});
  const std::vector<MethodRow> rows = rows_of(figures, methods, selected);
  const std::vector<std::size_t> shown = columns_with_room(rows);
  if (ImGui::BeginTable("methods", static_cast<int>(1 + shown.size()), ImGuiTableFlags_SizingStretchSame)) {
    ImGui::TableSetupColumn("method", ImGuiTableColumnFlags_WidthFixed, names_width(rows));
    ImGui::TableNextRow();
    ImGui::TableNextColumn();
    dim_text("method");
    for (const std::size_t c : shown) {
      ImGui::TableNextColumn();
      right_aligned(kMethodColumns[c].name, t.dim);
      tip(kMethodColumns[c].about);
    }
    for (std::size_t m = 0; m < rows.size(); ++m) {
      ImGui::TableNextRow();
      ImGui::TableNextColumn();
      const float side = ImGui::GetTextLineHeight() * 0.6F;
      const ImVec2 at = ImGui::GetCursorScreenPos();
      const float top = at.y + (ImGui::GetTextLineHeight() - side) / 2;
      if (ImGui::Selectable(fmt::format("##{}", methods[m]).c_str(), chosen == methods[m],
                            ImGuiSelectableFlags_SpanAllColumns))
        chosen = methods[m];
      tip(tip_of(methods[m]));
      ImDrawList* list = ImGui::GetWindowDrawList();
      list->AddRectFilled({at.x, top}, {at.x + side, top + side}, t.series[m % t.series.size()], t.px(1.5F));
      list->AddText({at.x + side + t.px(5), at.y}, t.text, rows[m].name.c_str());
      ImGui::PushFont(mono_font());
      for (const std::size_t c : shown) {
        ImGui::TableNextColumn();
        right_aligned(rows[m].texts[c], t.text);
      }
      ImGui::PopFont();
    }
    ImGui::EndTable();
  }
  ImGui::PopStyleVar();
  const std::string waiting = progress_of(figures);
  if (!waiting.empty() || figures.pending()) {
    dim_text(waiting.empty() ? "divides the total" : waiting);
    busy_mark();
  } else if (const BudgetShare* share = figures.find(chosen)) {
    ImGui::PushTextWrapPos(0);
    dim_text(fmt::format("{} keeps {}, {:.1f} a head", shown_name(chosen), counted(share->total, "token"),
                         static_cast<double>(share->total) /
                             static_cast<double>(std::max<std::ptrdiff_t>(known_heads(*share), 1))));
    ImGui::PopTextWrapPos();
  }
  ImGui::PushTextWrapPos(0);
  for (const std::string& note : figures.notes()) dim_text(note);
  ImGui::PopTextWrapPos();
}

/// Division of a total budget among the heads, method by method.
class BudgetsPanel final : public Panel {
 public:
  void draw(PanelContext& context) override;
  HeatmapView* heatmap() override { return &map_.heatmap(); }
  std::string figure_title(PanelContext& context) const override;
  std::vector<std::string> figure_settings(PanelContext& context) const override;
  std::string csv(PanelContext& context) const override;
  void keep(SessionFields& fields) override;

 private:
  bool look(PanelContext& context);
  void draw_map(AppState& state, ImVec2 size);
  void draw_plot(const PanelContext& context, Index selected, ImVec2 size);

  BudgetSettings settings_;
  std::string method_{name_of(BudgetMethod::optimal)};  // of the map
  BudgetFigures shown_;
  std::vector<std::string> methods_;  // that it has
  std::string stored_order_, stored_sigma_;
  bool by_layer_ = false;  // losses are shares of their layer's
  BudgetPlot plot_;
  HeadGrid map_;
};

void BudgetsPanel::draw(PanelContext& context) {
  AppState& state = context.state;
  const auto& run = state.run();
  if (!look(context)) return;
  const Selection& selection = state.selection();
  const Index selected = selection.layer * run->shape().n_kv + selection.kv_head;
  if (!shown_.error().empty()) error_line(shown_.error());
  const StaleOverlay veil(context.veiled);

  const Theme& t = theme();
  const ImVec2 room = ImGui::GetContentRegionAvail();
  const float gap = t.px(12);
  if (room.x < t.px(520)) {
    draw_budget_table(shown_, methods_, selected, method_);
    const float height = std::max((ImGui::GetContentRegionAvail().y - gap) / 2, t.px(120));
    draw_map(state, {ImGui::GetContentRegionAvail().x, height});
    return draw_plot(context, selected, {ImGui::GetContentRegionAvail().x, height});
  }
  // Side by side: the table, the map and the curves, the table above the map where there is height for it.
  const bool high = room.y > t.px(330);
  const float table = high ? room.x * 0.5F : t.px(278);
  ImGui::BeginChild("left", {table, 0});
  draw_budget_table(shown_, methods_, selected, method_);
  if (high) draw_map(state, ImGui::GetContentRegionAvail());
  ImGui::EndChild();
  ImGui::SameLine(0, gap);
  ImGui::BeginChild("right", {0, 0});
  const ImVec2 rest = ImGui::GetContentRegionAvail();
  if (high) {
    draw_plot(context, selected, rest);
  } else {
    const ImVec2 half = {(rest.x - gap) / 2, rest.y};
    ImGui::BeginGroup();
    draw_map(state, half);
    ImGui::EndGroup();
    ImGui::SameLine(0, gap);
    ImGui::BeginGroup();
    draw_plot(context, selected, half);
    ImGui::EndGroup();
  }
  ImGui::EndChild();
}

/// Asks and draws the controls; false where there is nothing to show, a hint having said why.
bool BudgetsPanel::look(PanelContext& context) {
  const Run& run = *context.state.run();
  if (run.dump() == nullptr) {
    if (const auto why = why_no_budget_results(*run.results())) {
      hint_no_dump(context.state, fmt::format("{}, and there is no dump to compute budgets from: {}.", *why,
                                              run.why_no_dump()));
      return false;
    }
    shown_.look_at_results(context, stored_order_, stored_sigma_);
    methods_ = shown_.methods();
    by_layer_ = false;
    if (const BudgetResults* results = shown_.results()) {
      const HiddenDraw controls(context.figure);
      choose_budgets(run, *results, stored_order_, stored_sigma_);
      by_layer_ = results->normalised;
    }
    if (!methods_.empty() && shown_.find(method_) == nullptr) method_ = methods_.front();
    return true;
  }
  const DumpShape& shape = run.shape();
  if (future_rows(shape.l, shape.T, shape.first_query()).count() == 0) {
    hint("A head's loss is what the decoding steps miss, and this dump has no decoding steps with queries.");
    return false;
  }
  if (settings_.linked) settings_.sigma = context.state.budget.ratio(shape.l);
  shown_.look(context, settings_);
  {
    const HiddenDraw controls(context.figure);
    edit_budgets(run, context.state.budget, settings_);
  }
  methods_.clear();
  for (const BudgetDivision& method : settings_.methods) methods_.push_back(method.name);
  by_layer_ = settings_.normalised();
  return true;
}

void BudgetsPanel::draw_map(AppState& state, ImVec2 size) {
  const DumpShape& shape = state.run()->shape();
  const BudgetShare* share = shown_.find(method_);
  HeadGridContent content;
  content.empty = share == nullptr;
  content.hint = progress_of(shown_);
  // Values and not their address: an answer may be dropped and another lie there.
  content.key = {state.run()->key(), "budget_map", method_};
  if (share != nullptr) content.key = {content.key, share->budgets};
  content.quantity = fmt::format("budget, {}", shown_name(method_));
  content.unit = "tokens";
  content.value = [&](Index head) {
    const auto h = static_cast<std::size_t>(head);
    return std::isnan(share->loss[h]) ? share->loss[h] : static_cast<double>(share->budgets[h]);
  };
  const auto head = map_.draw(size, content, state);
  if (!head || share == nullptr) return;
  const auto h = static_cast<std::size_t>(*head);
  if (std::isnan(share->loss[h])) return;
  ImGui::BeginTooltip();
  ImGui::TextUnformatted(
      fmt::format("layer {}, KV head {}", state.run()->layer_number(*head / shape.n_kv), *head % shape.n_kv)
          .c_str());
  figure("budget", fmt::format("{} of {} tokens", share->budgets[h], shape.l));
  figure("loss", number_text(share->loss[h]));
  ImGui::EndTooltip();
}

void BudgetsPanel::draw_plot(const PanelContext& context, Index selected, ImVec2 size) {
  const Run& run = *context.state.run();
  const float top = ImGui::GetCursorPosY();
  {
    const HiddenDraw controls(context.figure);
    either("plot", "Loss", "Share kept", plot_.shows_shares);
    tip("Loss: of the head at every budget. Share kept: what lu keeps of the head at every compression, "
        "among "
        "the other heads; dashed an even split (LU-KV fig. 2b).");
  }
  size.y -= ImGui::GetCursorPosY() - top;
  BudgetPlotContent content;
  content.key = {run.key(), shown_.version()};
  content.heads = shown_.heads();
  content.l = run.shape().l;
  content.head = run.head_text(selected / run.shape().n_kv, selected % run.shape().n_kv);
  content.selected = selected;
  content.title = fmt::format("{}, {}", by_layer_ ? "share of layer lost" : "loss", content.head);
  const bool live = run.dump() != nullptr;
  const double stored = std::strtod(stored_sigma_.c_str(), nullptr);  // a ratio, or tokens
  content.sigma = live         ? settings_.sigma
                  : stored < 1 ? stored
                               : 1 - stored / static_cast<double>(std::max<Index>(content.l, 1));
  for (std::size_t m = 0; m < methods_.size(); ++m)
    if (const BudgetShare* share = shown_.find(methods_[m]);
        share != nullptr && !std::isnan(share->loss[selected]))
      content.points.push_back({methods_[m], static_cast<double>(share->budgets[selected]),
                                share->loss[selected], theme().series[m % theme().series.size()],
                                methods_[m] == method_});
  plot_.draw(size, content, shown_);
}

std::string BudgetsPanel::figure_title(PanelContext&) const {
  return fmt::format("One budget shared between the heads, the map by {}", method_);
}

std::vector<std::string> BudgetsPanel::figure_settings(PanelContext& context) const {
  if (context.state.run()->dump() == nullptr)
    return {fmt::format("order {}, sigma {}", stored_order_, stored_sigma_)};
  BudgetSettings given = settings_;
  return {"budget" + options_text(bound(given), {})};
}

std::string BudgetsPanel::csv(PanelContext& context) const {
  const auto& run = context.state.run();
  if (run == nullptr || !shown_.error().empty()) return {};
  if (!shown_.is_of(*run) || shown_.stale()) return {};
  const bool live = run->dump() != nullptr;
  CsvTable table("layer,kv_head,order,method,sigma,budget,loss");
  const Index n_kv = run->shape().n_kv;
  for (const std::string& method : methods_) {
    const BudgetShare* share = shown_.find(method);
    if (share == nullptr) continue;
    for (std::size_t h = 0; h < share->budgets.size(); ++h)
      if (!std::isnan(share->loss[h]))
        table.row(static_cast<Index>(h) / n_kv, static_cast<Index>(h) % n_kv,
                  live ? settings_.order.name : stored_order_, method,
                  live ? shortest(settings_.sigma) : stored_sigma_, share->budgets[h], share->loss[h]);
  }
  return table.rows() > 0 ? table.text() : std::string();
}

void BudgetsPanel::keep(SessionFields& fields) {
  fields.settings("settings", settings_);
  fields.object("results", [this](SessionFields& results) {
    results.field("order", stored_order_);
    results.field("sigma", stored_sigma_);
  });
  fields.field("method", method_);
  fields.field("shares", plot_.shows_shares);
  fields.part("map", map_.heatmap());
}

}  // namespace

template <>
std::unique_ptr<Panel> make_panel<PanelKind::budgets>() {
  return std::make_unique<BudgetsPanel>();
}

}  // namespace kvreplay::viewer
