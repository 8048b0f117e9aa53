#include "viewer/gl/ui_context.hpp"
#include "viewer/model/session_keys.hpp"
#include "viewer/panels/budgets/budget_controls.hpp"
#include "viewer/panels/budgets/budget_plot.hpp"
#include "viewer/panels/budgets/budget_result_source.hpp"
#include "viewer/panels/budgets/budget_source.hpp"
#include "viewer/panels/budgets/budget_table.hpp"
#include "viewer/panels/head_grid.hpp"
#include "viewer/panels/no_dump.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"
#include "viewer/work/command_text.hpp"
#include "viewer/work/csv_table.hpp"
#include "viewer/work/policy_settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>
#include <vector>

namespace kvreplay::viewer {
namespace {

/// How a total budget is divided among heads, method by method.
class BudgetsPanel final : public Panel {
 public:
  void draw(PanelContext& context) override;
  HeatmapView* heatmap() override { return &map_.heatmap(); }
  std::string figure_title(PanelContext& context) const override;
  std::vector<std::string> figure_settings(PanelContext& context) const override;
  std::string csv(PanelContext& context) const override;
  nlohmann::json save() const override;
  void load(const nlohmann::json& json) override;

 private:
  bool look(PanelContext& context);
  void draw_map(AppState& state, ImVec2 size);
  void draw_plot(const PanelContext& context, Index selected, ImVec2 size);

  BudgetSettings settings_;
  std::string method_{name_of(BudgetMethod::optimal)};  // of the map
  BudgetSource live_;
  BudgetResultSource stored_;         // of a result folder whose dump is gone
  BudgetFigures* shown_ = &live_;     // one of them
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
  if (!shown_->error().empty()) error_line(shown_->error());

  const Theme& t = theme();
  const ImVec2 room = ImGui::GetContentRegionAvail();
  const float gap = t.px(12);
  if (room.x < t.px(520)) {
    draw_budget_table(*shown_, methods_, selected, method_);
    const float height = std::max((ImGui::GetContentRegionAvail().y - gap) / 2, t.px(120));
    draw_map(state, {ImGui::GetContentRegionAvail().x, height});
    return draw_plot(context, selected, {ImGui::GetContentRegionAvail().x, height});
  }
  // Side by side: the table, the map and the curves, the table above the map where there is height for it.
  const bool high = room.y > t.px(330);
  const float table = high ? room.x * 0.5F : t.px(278);
  ImGui::BeginChild("left", {table, 0});
  draw_budget_table(*shown_, methods_, selected, method_);
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
    stored_.look(context, stored_order_, stored_sigma_);
    const OutOfSight controls(context.figure);
    choose_budgets(run, stored_, stored_order_, stored_sigma_);
    shown_ = &stored_;
    methods_ = stored_.methods();
    by_layer_ = stored_.normalised();
    if (!methods_.empty() && shown_->find(method_) == nullptr) method_ = methods_.front();
    return true;
  }
  const DumpShape& shape = run.shape();
  if (future_rows(shape.l, shape.T, shape.first_query()).count() == 0) {
    hint("A head's loss is what the decoding steps miss, and this dump has no decoding steps with queries.");
    return false;
  }
  if (settings_.linked) settings_.sigma = context.state.budget.ratio(shape.l);
  live_.look(context, settings_);
  {
    const OutOfSight controls(context.figure);
    edit_budgets(run, context.state.budget, settings_);
  }
  shown_ = &live_;
  methods_.clear();
  for (const BudgetDivision& method : settings_.methods) methods_.push_back(method.name);
  by_layer_ = settings_.normalised();
  return true;
}

void BudgetsPanel::draw_map(AppState& state, ImVec2 size) {
  const DumpShape& shape = state.run()->shape();
  const BudgetShare* share = shown_->find(method_);
  HeadGridContent content;
  content.empty = share == nullptr;
  content.hint = progress_of(*shown_);
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
  ImGui::TextUnformatted(fmt::format("Layer {}, KV head {}", *head / shape.n_kv, *head % shape.n_kv).c_str());
  figure("budget", fmt::format("{} of {} tokens", share->budgets[h], shape.l));
  figure("loss", number_text(share->loss[h]));
  ImGui::EndTooltip();
}

void BudgetsPanel::draw_plot(const PanelContext& context, Index selected, ImVec2 size) {
  const Run& run = *context.state.run();
  const float top = ImGui::GetCursorPosY();
  {
    const OutOfSight controls(context.figure);
    constexpr std::string_view names[] = {"Loss", "Share kept"};
    std::size_t chosen = plot_.shows_shares ? 1 : 0;
    if (segments("plot", names, chosen)) plot_.shows_shares = chosen == 1;
    tip("Loss: of the head at every budget. Share kept: what lu keeps of the head at every compression, "
        "among "
        "the other heads; dashed an even split (LU-KV fig. 2b).");
  }
  size.y -= ImGui::GetCursorPosY() - top;
  BudgetPlotContent content;
  content.key = {run.key(), shown_->version()};
  content.heads = shown_->heads();
  content.l = run.shape().l;
  content.head = fmt::format("layer {} head {}", selected / run.shape().n_kv, selected % run.shape().n_kv);
  content.selected = selected;
  content.title = fmt::format("{}, {}", by_layer_ ? "share of layer lost" : "loss", content.head);
  const bool live = shown_ == &live_;
  const double stored = std::strtod(stored_sigma_.c_str(), nullptr);  // a ratio, or tokens
  content.sigma = live         ? settings_.sigma
                  : stored < 1 ? stored
                               : 1 - stored / static_cast<double>(std::max<Index>(content.l, 1));
  for (std::size_t m = 0; m < methods_.size(); ++m)
    if (const BudgetShare* share = shown_->find(methods_[m]);
        share != nullptr && !std::isnan(share->loss[selected]))
      content.points.push_back({methods_[m], static_cast<double>(share->budgets[selected]),
                                share->loss[selected], theme().series[m % theme().series.size()],
                                methods_[m] == method_});
  plot_.draw(size, content, *shown_);
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
  if (run == nullptr || !shown_->error().empty()) return {};
  const bool live = shown_ == &live_;
  if (live != (run->dump() != nullptr) || (live && live_.stale())) return {};
  CsvTable table("layer,kv_head,order,method,sigma,budget,loss");
  const Index n_kv = run->shape().n_kv;
  for (const std::string& method : methods_) {
    const BudgetShare* share = shown_->find(method);
    if (share == nullptr) continue;
    for (std::size_t h = 0; h < share->budgets.size(); ++h)
      if (!std::isnan(share->loss[h]))
        table.row(static_cast<Index>(h) / n_kv, static_cast<Index>(h) % n_kv,
                  live ? settings_.order.name : stored_order_, method,
                  live ? shortest(settings_.sigma) : stored_sigma_, share->budgets[h], share->loss[h]);
  }
  return table.rows() > 0 ? table.text() : std::string();
}

nlohmann::json BudgetsPanel::save() const {
  return {{"settings", to_json(settings_)},
          {"results", {{"order", stored_order_}, {"sigma", stored_sigma_}}},
          {"method", method_},
          {"shares", plot_.shows_shares},
          {"map", map_.heatmap().save()}};
}

void BudgetsPanel::load(const nlohmann::json& json) {
  if (!json.is_object()) return;
  read_settings(json, "settings", settings_);
  Keys keys(json);
  if (const nlohmann::json* results = keys.at("results")) {
    Keys of_results(*results);
    of_results.read("order", stored_order_);
    of_results.read("sigma", stored_sigma_);
  }
  keys.read("method", method_);
  keys.read("shares", plot_.shows_shares);
  if (const nlohmann::json* map = keys.at("map")) map_.heatmap().load(*map);
}

}  // namespace

template <>
std::unique_ptr<Panel> make_panel<PanelKind::budgets>() {
  return std::make_unique<BudgetsPanel>();
}

}  // namespace kvreplay::viewer
