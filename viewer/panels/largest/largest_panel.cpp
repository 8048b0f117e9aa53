#include "analysis/results/agreement.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/model/token_text.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/questions/ask.hpp"
#include "viewer/questions/csv_table.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay::viewer {
namespace {

constexpr Index kMostShown = 100;

/// The tokens of the selected head with the largest values of a metric.
class LargestPanel final : public Panel {
 public:
  void draw(PanelContext& context) override;
  std::string figure_title(PanelContext&) const override {
    return fmt::format("Largest tokens by {}", name_of(metric_));
  }
  std::string csv(PanelContext& context) const override;
  void keep(SessionFields& fields) override { fields.name("metric", metric_, in_table(kTokenMetrics)); }

 private:
  struct Row {
    Index token;
    double value, share;
  };
  void draw_table(AppState& state) const;

  TokenMetric metric_ = TokenMetric::exact_remove;
  std::vector<Row> rows_;
};

void LargestPanel::draw(PanelContext& context) {
  rows_.clear();
  const Run& run = *context.state.run();
  const MetricSet available = available_metrics(run);
  {
    const OutOfSight controls(context.figure);
    choose_metric("##metric", run, available, metric_, combo_width("expected_attention"));
  }
  const ComparedHead head = ask_compared_head(context);
  if (!head.summary.error.empty()) return error_line(head.summary.error);
  if (!head.summary || head.summary->tokens == nullptr) return hint("Computing ...");
  const Matrix<double>& values = (*head.summary->tokens)[metric_];
  if (values.size() == 0) return hint(fmt::format("This run has no {}.", name_of(metric_)));
  const Ranking ranking({values.data(), static_cast<std::size_t>(values.size())});
  for (Index i = 0; i < std::min<Index>(kMostShown, std::ssize(ranking.order())); ++i) {
    const Index token = ranking.order()[i];
    rows_.push_back({token, values(0, token), values(0, token) / ranking.total()});
  }
  draw_table(context.state);
}

void LargestPanel::draw_table(AppState& state) const {
  const Theme& t = theme();
  if (!ImGui::BeginTable("tokens", 3, ImGuiTableFlags_ScrollY | ImGuiTableFlags_RowBg)) return;
  ImGui::TableSetupColumn("token", ImGuiTableColumnFlags_WidthStretch);
  ImGui::TableSetupColumn("value", ImGuiTableColumnFlags_WidthFixed, t.px(74));
  ImGui::TableSetupColumn("share", ImGuiTableColumnFlags_WidthFixed, t.px(60));
  ImGui::TableSetupScrollFreeze(0, 1);
  ImGui::TableHeadersRow();
  for (const Row& row : rows_) {
    ImGui::TableNextRow();
    ImGui::TableNextColumn();
    const std::string text =
        fmt::format("{}  {}##{}", row.token, token_text(state.run()->labels(), row.token, 40), row.token);
    if (ImGui::Selectable(text.c_str(), state.selection().token == row.token,
                          ImGuiSelectableFlags_SpanAllColumns))
      state.select_cell(state.selection().row, row.token);
    if (ImGui::IsItemHovered()) state.next_hover.token = row.token;
    ImGui::TableNextColumn();
    right_aligned_number(number_text(row.value), t.text);
    ImGui::TableNextColumn();
    right_aligned_number(percent_text(row.share), t.dim);
  }
  ImGui::EndTable();
}

std::string LargestPanel::csv(PanelContext&) const {
  if (rows_.empty()) return {};
  CsvTable table(fmt::format("token,{},share", name_of(metric_)));
  for (const Row& row : rows_) table.row(row.token, row.value, row.share);
  return table.text();
}

}  // namespace

template <>
std::unique_ptr<Panel> make_panel<PanelKind::largest>() {
  return std::make_unique<LargestPanel>();
}

}  // namespace kvreplay::viewer
