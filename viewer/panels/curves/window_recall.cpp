#include "viewer/panels/curves/window_recall.hpp"

#include "analysis/options/option.hpp"
#include "viewer/panels/no_dump.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"
#include "viewer/work/csv_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvreplay::viewer {

void WindowRecall::draw_controls(const AppState& state, MetricSet& hidden) {
  flow(check_width("Windows"));
  if (ImGui::Checkbox("Windows", &shown) && shown)
    for (const TokenMetric exact : {TokenMetric::exact_joint, TokenMetric::exact_remove})
      hidden.erase(exact);  // what the scores stand for on the window
  tip("The recall at the budget over the number of rows that score, from one to the whole prompt. The table "
      "is of the window that all panels look at.");
  if (!shown) return;
  const float width = theme().px(46);
  flow(width + ImGui::CalcTextSize("reserve").x + theme().px(10));
  ImGui::AlignTextToFramePadding();
  dim_text("reserve");
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
  const auto metrics = context.desk.ask<WindowMetrics>(
      {.key = {run->key(), "window_metrics", of_head},
       .title = fmt::format("Token metrics on every window, {}", head.title()),
       .all_cores = true},
      [run, layer = head.layer, kv_head = head.kv_head, query_head = head.query_head](JobControl& job) {
        return window_metrics(*run->head(layer, kv_head), available_metrics(*run), query_head, job.compute());
      });
  Answer<WindowCurves> found;
  if (metrics)
    found = context.desk.ask<WindowCurves>(
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

nlohmann::json WindowRecall::save() const { return {{"shown", shown}, {"reserve", reserve_}}; }

void WindowRecall::load(const nlohmann::json& json) {
  if (!json.is_object()) return;
  if (json.contains("shown") && json["shown"].is_boolean()) shown = json["shown"].get<bool>();
  if (json.contains("reserve") && json["reserve"].is_number_integer() && json["reserve"] >= 0 &&
      json["reserve"] < (1U << 30U))
    reserve_ = json["reserve"].get<Index>();
}

}  // namespace kvreplay::viewer
