#include "viewer/panels/metric_controls.hpp"

#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"
#include "viewer/work/figure_info.hpp"

#include <fmt/format.h>

#include <imgui.h>

namespace kvreplay::viewer {

void flow(float width) {
  const float right = ImGui::GetWindowPos().x + ImGui::GetWindowContentRegionMax().x;
  if (ImGui::GetItemRectMax().x + ImGui::GetStyle().ItemSpacing.x + width <= right) ImGui::SameLine();
}

float check_width(const char* label) {
  return ImGui::GetFrameHeight() + ImGui::GetStyle().ItemInnerSpacing.x + ImGui::CalcTextSize(label).x;
}

std::string_view meaning_of(TokenMetric metric) {
  switch (metric) {
    case TokenMetric::attn:
      return "Attention that the window pays: sum of a (H2O, TOVA, SnapKV)";
    case TokenMetric::attn_sq:
      return "Sum of a\xC2\xB2";
    case TokenMetric::value:
      return "Error of v := 0: sum of a\xC2\xB2 |v|\xC2\xB2; exact";
    case TokenMetric::key:
      return "First-order error of k := 0: sum of (a z)\xC2\xB2 |v - o|\xC2\xB2";
    case TokenMetric::joint:
      return "First-order error of k := 0 and v := 0: sum of a\xC2\xB2 |v + z (v - o)|\xC2\xB2";
    case TokenMetric::caote:
      return "Output error of removing it, for one averaged row (CAOTE)";
    case TokenMetric::fastcaote:
      return "CAOTE with the plain mean of the values";
    case TokenMetric::knorm:
      return "-|k|: keys of small norm draw attention";
    case TokenMetric::keydiff:
      return "-cos(k, mean key): unusual keys are kept";
    case TokenMetric::expected_attention:
      return "Attention expected of queries still to come, times |v|";
    case TokenMetric::exact_value:
      return "Exact error of v := 0: sum of |o' - o|\xC2\xB2";
    case TokenMetric::exact_key:
      return "Exact error of k := 0: sum of |o' - o|\xC2\xB2";
    case TokenMetric::exact_joint:
      return "Exact error of k := 0 and v := 0: sum of |o' - o|\xC2\xB2";
    case TokenMetric::exact_remove:
      return "Exact error of removing it, the rest renormalised: sum of |o' - o|\xC2\xB2";
    case TokenMetric::oracle_next:
      return "exact_remove on the first decoding step alone";
    case TokenMetric::oracle_future:
      return "exact_remove on all decoding steps";
    case TokenMetric::oracle_importance:
      return "Largest a |v W_O| over all decoding steps (LU-KV)";
  }
  return {};
}

std::string title_with_unit(TokenMetric metric) {
  if (unit_of(metric) == MetricUnit::other) return std::string(name_of(metric));
  return fmt::format("{} ({})", name_of(metric), figure_info(HeadFigure{metric, {}, {}}).unit);
}

namespace {

const char* heading_of(MetricKind kind) {
  switch (kind) {
    case MetricKind::score:
      return "Scores, on the window";
    case MetricKind::exact:
      return "Exact errors, on the window";
    case MetricKind::oracle:
      return "Oracles, on the decoding steps";
  }
  return "";
}

std::string why_missing(const Run& run, TokenMetric metric) {
  if (run.dump() == nullptr) return "Not among this run's results.";
  const auto why = why_unavailable(metric, *run.dump());
  return fmt::format("Not there: {}.", why ? *why : "this dump cannot give it");
}

}  // namespace

bool choose_metric(const char* label, const Run& run, const MetricSet& available, TokenMetric& chosen,
                   float width) {
  ImGui::SetNextItemWidth(theme().px(width));
  const bool open =
      ImGui::BeginCombo(label, std::string(name_of(chosen)).c_str(), ImGuiComboFlags_HeightLargest);
  if (!open) {
    tip(std::string(meaning_of(chosen)).c_str());
    return false;
  }
  const TokenMetric before = chosen;
  std::optional<MetricKind> kind;
  for (const TokenMetric metric : all_token_metrics()) {
    if (kind != kind_of(metric)) {
      if (kind) ImGui::Dummy({0, theme().px(2)});
      kind = kind_of(metric);
      dim_text(heading_of(*kind));
    }
    const bool there = available.contains(metric);
    const auto flags = there ? ImGuiSelectableFlags_None : ImGuiSelectableFlags_Disabled;
    if (ImGui::Selectable(std::string(name_of(metric)).c_str(), metric == before, flags)) chosen = metric;
    if (there) {
      tip(std::string(meaning_of(metric)).c_str());
    } else if (ImGui::IsItemHovered(ImGuiHoveredFlags_AllowWhenDisabled)) {
      ImGui::SetTooltip("%s", why_missing(run, metric).c_str());
    }
    if (metric == before) ImGui::SetItemDefaultFocus();
  }
  ImGui::EndCombo();
  return chosen != before;
}

}  // namespace kvreplay::viewer
