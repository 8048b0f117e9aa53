#include "analysis/csv.hpp"
#include "data/error.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/panels/budget_controls.hpp"
#include "viewer/panels/budget_plot.hpp"
#include "viewer/panels/budget_source.hpp"
#include "viewer/panels/head_grid.hpp"
#include "viewer/panels/make_panels.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"
#include "viewer/work/policy_settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace kvreplay::viewer {
namespace {

const char* tip_of(const std::string& method) {
  if (method == "uniform") return "Every head keeps the same";
  if (method == "pyramid") return "PyramidKV: falls linearly over layers, beta = 20";
  if (method == "ada") return "AdaKV: the best scores over a layer's heads, after each head's own top 20 %";
  if (method == "lu") return "LU-KV: the largest gains of every curve's lower convex hull, greedily";
  return "The least total loss that integer budgets can have (multiple-choice knapsack)";
}

std::string excess_text(double excess) {
  return std::abs(excess) < 1 ? fmt::format("{:+.1f} %", 100 * excess)
                              : fmt::format("{:+.0f} %", 100 * excess);
}

/// How a total budget is divided among heads, method by method.
class BudgetsPanel final : public Panel {
 public:
  PanelKind kind() const override { return PanelKind::budgets; }
  void draw(PanelContext& context) override;
  HeatmapView* heatmap() override { return &map_.heatmap(); }
  std::string csv(PanelContext& context) const override;
  nlohmann::json save() const override;
  void load(const nlohmann::json& json) override;

 private:
  void draw_table(Index selected);
  void draw_map(AppState& state, ImVec2 size);
  void draw_plot(const Run& run, Index selected, ImVec2 size);
  std::string progress() const;

  BudgetSettings settings_;
  std::string method_ = "optimal";  // of the map
  BudgetSource source_;
  BudgetPlot plot_;
  HeadGrid map_;
};

void BudgetsPanel::draw(PanelContext& context) {
  AppState& state = context.state;
  const auto& run = state.run();
  if (run->dump() == nullptr)
    return hint(fmt::format(
        "Loss curves are computed from the dump, and this run has none: {}. The head map shows the "
        "budgets that the result folder holds.",
        run->why_no_dump()));
  if (future_rows(run->shape().l, run->shape().T, run->shape().first_query()).count() == 0)
    return hint(
        "A head's loss is what the decoding steps miss, and this dump has no decoding steps with queries.");
  source_.look(context, settings_);
  edit_budgets(*run, settings_);
  const Selection& selection = state.selection();
  const Index selected = selection.layer * run->shape().n_kv + selection.kv_head;
  if (!source_.error().empty()) error_line(source_.error());

  const Theme& t = theme();
  const ImVec2 room = ImGui::GetContentRegionAvail();
  const float gap = t.px(12);
  if (room.x < t.px(520)) {
    draw_table(selected);
    const float height = std::max((ImGui::GetContentRegionAvail().y - gap) / 2, t.px(120));
    draw_map(state, {ImGui::GetContentRegionAvail().x, height});
    return draw_plot(*run, selected, {ImGui::GetContentRegionAvail().x, height});
  }
  // Side by side: the table, the map and the curves, the table above the map where there is height for it.
  const bool high = room.y > t.px(330);
  const float table = high ? room.x * 0.5F : t.px(278);
  ImGui::BeginChild("left", {table, 0});
  draw_table(selected);
  if (high) draw_map(state, ImGui::GetContentRegionAvail());
  ImGui::EndChild();
  ImGui::SameLine(0, gap);
  ImGui::BeginChild("right", {0, 0});
  const ImVec2 rest = ImGui::GetContentRegionAvail();
  if (high) {
    draw_plot(*run, selected, rest);
  } else {
    const ImVec2 half = {(rest.x - gap) / 2, rest.y};
    ImGui::BeginGroup();
    draw_map(state, half);
    ImGui::EndGroup();
    ImGui::SameLine(0, gap);
    ImGui::BeginGroup();
    draw_plot(*run, selected, half);
    ImGui::EndGroup();
  }
  ImGui::EndChild();
}

std::string BudgetsPanel::progress() const {
  if (source_.missing() == 0) return {};
  return fmt::format("waits for {} more head{}", source_.missing(), source_.missing() == 1 ? "" : "s");
}

void BudgetsPanel::draw_table(Index selected) {
  const Theme& t = theme();
  const BudgetShare* best = source_.find("optimal");
  ImGui::PushStyleVar(ImGuiStyleVar_CellPadding, {t.px(4), t.px(1.5F)});
  if (ImGui::BeginTable("methods", 5, ImGuiTableFlags_SizingStretchProp)) {
    ImGui::TableSetupColumn("method", ImGuiTableColumnFlags_WidthStretch, 1.25F);
    ImGui::TableSetupColumn("loss", ImGuiTableColumnFlags_WidthStretch, 0.85F);
    ImGui::TableSetupColumn("excess", ImGuiTableColumnFlags_WidthStretch, 1.1F);
    ImGui::TableSetupColumn("budgets", ImGuiTableColumnFlags_WidthStretch, 1.25F);
    ImGui::TableSetupColumn("here", ImGuiTableColumnFlags_WidthStretch, 0.7F);
    const auto right = [&](const std::string& text, ImU32 color) {
      const float width = ImGui::CalcTextSize(text.c_str()).x;
      ImGui::SetCursorPosX(ImGui::GetCursorPosX() + std::max(0.0F, ImGui::GetContentRegionAvail().x - width));
      ImGui::PushStyleColor(ImGuiCol_Text, color);
      ImGui::TextUnformatted(text.c_str());
      ImGui::PopStyleColor();
    };
    ImGui::TableNextRow();
    ImGui::TableNextColumn();
    dim_text("method");
    constexpr std::array<std::pair<const char*, const char*>, 4> kHeads = {{
        {"loss", "Total loss: the sum of all heads' eviction loss at their budgets"},
        {"excess", "Total loss above that of optimal"},
        {"budgets", "Tokens kept by the head of smallest and of largest budget"},
        {"here", "Tokens that the selected head keeps"},
    }};
    for (const auto& head : kHeads) {
      ImGui::TableNextColumn();
      right(head.first, t.dim);
      tip(head.second);
    }
    for (std::size_t m = 0; m < settings_.methods.size(); ++m) {
      const std::string& name = settings_.methods[m];
      const BudgetShare* share = source_.find(name);
      ImGui::TableNextRow();
      ImGui::TableNextColumn();
      const float side = ImGui::GetTextLineHeight() * 0.6F;
      const ImVec2 at = ImGui::GetCursorScreenPos();
      const float top = at.y + (ImGui::GetTextLineHeight() - side) / 2;
      if (ImGui::Selectable(fmt::format("##{}", name).c_str(), method_ == name,
                            ImGuiSelectableFlags_SpanAllColumns))
        method_ = name;
      tip(tip_of(name));
      ImDrawList* list = ImGui::GetWindowDrawList();
      list->AddRectFilled({at.x, top}, {at.x + side, top + side}, t.series[m % t.series.size()], t.px(1.5F));
      list->AddText({at.x + side + t.px(5), at.y}, t.text, name.c_str());
      ImGui::PushFont(mono_font());
      ImGui::TableNextColumn();
      if (share != nullptr) right(number_text(share->total_loss), t.text);
      ImGui::TableNextColumn();
      if (share != nullptr && best != nullptr && best->total_loss > 0)
        right(share == best ? "0 %" : excess_text(share->total_loss / best->total_loss - 1), t.text);
      ImGui::TableNextColumn();
      if (share != nullptr) {
        const auto ends = std::minmax_element(share->budgets.begin(), share->budgets.end());
        right(*ends.first == *ends.second ? fmt::format("{}", *ends.first)
                                          : fmt::format("{}\xE2\x80\x93{}", *ends.first, *ends.second),
              t.text);
      }
      ImGui::TableNextColumn();
      if (share != nullptr && static_cast<std::size_t>(selected) < share->budgets.size())
        right(fmt::format("{}", share->budgets[static_cast<std::size_t>(selected)]), t.text);
      ImGui::PopFont();
    }
    ImGui::EndTable();
  }
  ImGui::PopStyleVar();
  const std::string waiting = progress();
  if (!waiting.empty() || source_.pending()) {
    dim_text(waiting.empty() ? "divides the total" : waiting);
    busy_mark();
  } else if (const BudgetShare* share = source_.find(method_)) {
    dim_text(fmt::format(
        "{} keeps {} tokens, {:.1f} a head", method_, share->total,
        static_cast<double>(share->total) / static_cast<double>(std::max<Index>(source_.heads(), 1))));
  }
  ImGui::PushTextWrapPos(0);
  for (const std::string& note : source_.notes()) dim_text(without_dashes(note));
  ImGui::PopTextWrapPos();
}

void BudgetsPanel::draw_map(AppState& state, ImVec2 size) {
  const DumpShape& shape = state.run()->shape();
  const BudgetShare* share = source_.find(method_);
  HeadGridContent content;
  content.empty = share == nullptr;
  content.hint = progress();
  // Values and not their address: an answer may be dropped and another lie there.
  content.key =
      fmt::format("{}budget_map/{}/{}", state.run()->key(), method_,
                  share != nullptr ? fmt::format("{}", fmt::join(share->budgets, " ")) : std::string());
  content.quantity = fmt::format("budget, {}", method_);
  content.unit = "tokens";
  content.value = [&](Index head) {
    return static_cast<double>(share->budgets[static_cast<std::size_t>(head)]);
  };
  const auto head = map_.draw(size, content, state);
  if (!head || share == nullptr) return;
  const auto h = static_cast<std::size_t>(*head);
  ImGui::BeginTooltip();
  ImGui::TextUnformatted(fmt::format("Layer {}, KV head {}", *head / shape.n_kv, *head % shape.n_kv).c_str());
  figure("budget", fmt::format("{} of {} tokens", share->budgets[h], shape.l));
  figure("loss", number_text(share->loss[h]));
  ImGui::EndTooltip();
}

void BudgetsPanel::draw_plot(const Run& run, Index selected, ImVec2 size) {
  BudgetPlotContent content;
  content.key = fmt::format("{}{}", run.key(), source_.version());
  content.heads = source_.heads();
  content.selected = selected;
  content.title =
      fmt::format("{}, layer {} head {}", settings_.normalise_by_layer ? "share of layer lost" : "loss",
                  selected / run.shape().n_kv, selected % run.shape().n_kv);
  for (std::size_t m = 0; m < settings_.methods.size(); ++m)
    if (const BudgetShare* share = source_.find(settings_.methods[m]))
      content.points.push_back({settings_.methods[m],
                                static_cast<double>(share->budgets[static_cast<std::size_t>(selected)]),
                                share->loss[static_cast<std::size_t>(selected)],
                                theme().series[m % theme().series.size()], settings_.methods[m] == method_});
  plot_.draw(size, content, source_);
}

std::string BudgetsPanel::csv(PanelContext& context) const {
  const auto& run = context.state.run();
  if (run == nullptr || !source_.error().empty()) return {};
  std::string text = "layer,kv_head,order,method,sigma,budget,loss\n";
  const Index n_kv = run->shape().n_kv;
  for (const BudgetSource::Method& method : source_.methods()) {
    const BudgetShare* share = source_.find(method.name);
    if (share == nullptr || method.share.stale) continue;
    for (std::size_t h = 0; h < share->budgets.size(); ++h)
      text += fmt::format("{},{},{},{},{},{},{}\n", static_cast<Index>(h) / n_kv,
                          static_cast<Index>(h) % n_kv, settings_.order, method.name,
                          shortest(settings_.sigma), share->budgets[h], shortest(share->loss[h]));
  }
  return text.find('\n') + 1 < text.size() ? text : std::string();
}

nlohmann::json BudgetsPanel::save() const {
  return {{"settings", to_json(settings_)}, {"method", method_}, {"map", map_.heatmap().save()}};
}

void BudgetsPanel::load(const nlohmann::json& json) {
  if (!json.is_object()) return;
  if (const auto found = json.find("settings"); found != json.end()) try {
      settings_ = budget_settings(*found, "budgets");
    } catch (const InputError&) {
      settings_ = BudgetSettings();
    }
  if (const auto found = json.find("method"); found != json.end() && found->is_string())
    for (const std::string& name : settings_.methods)
      if (name == found->get<std::string>()) method_ = name;
  if (const auto found = json.find("map"); found != json.end()) map_.heatmap().load(*found);
}

}  // namespace

std::unique_ptr<Panel> make_budgets_panel() { return std::make_unique<BudgetsPanel>(); }

}  // namespace kvreplay::viewer
