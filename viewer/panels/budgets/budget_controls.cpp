#include "viewer/panels/budgets/budget_controls.hpp"

#include "analysis/results/kept_text.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/policy_controls.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"
#include "viewer/work/head_figures.hpp"
#include "viewer/work/named_choices.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay::viewer {
namespace {

void edit_pins(const Run& run, BudgetSettings& settings) {
  const bool any = settings.floor > 0 || settings.sinks > 0 || settings.recent > 0;
  if (any) ImGui::PushStyleColor(ImGuiCol_Button, theme().accent_soft);
  if (ImGui::Button("Pins")) ImGui::OpenPopup("pins");
  if (any) ImGui::PopStyleColor();
  tip("What every head keeps in any case");
  if (!ImGui::BeginPopup("pins")) return;
  const auto l = static_cast<int>(std::min<Index>(run.shape().l, 1 << 30));
  const auto number = [&](const char* label, Index& value) {
    auto typed = static_cast<int>(value);
    ImGui::SetNextItemWidth(theme().px(90));
    if (ImGui::InputInt(label, &typed)) value = std::clamp(typed, 0, l);
  };
  number("sinks", settings.sinks);
  tip(budget_option::sinks.meaning.data());
  number("recent", settings.recent);
  tip(budget_option::recent.meaning.data());
  auto floor = static_cast<float>(settings.floor);
  ImGui::SetNextItemWidth(theme().px(90));
  if (ImGui::SliderFloat("floor", &floor, 0, 0.2F, "%.3f"))
    settings.floor = std::clamp(std::round(static_cast<double>(floor) * 1000) / 1000, 0.0, 0.999);
  tip(budget_option::floor.meaning.data());
  ImGui::EndPopup();
}

}  // namespace

void edit_budgets(const Run& run, KeptBudget& desk, BudgetSettings& settings) {
  const Theme& t = theme();
  std::vector<Choice> orders = {choice_of(EvictionBase::snapkv)};
  orders.front().group = "A policy";
  for (const TokenMetric metric : kTokenMetrics.all())
    if (metrics_of(*run.dump()).contains(metric)) orders.push_back(choice_of(metric));
  const auto named = [&](const Choice& one) { return one.name == settings.order.name; };
  auto order = static_cast<std::size_t>(std::find_if(orders.begin(), orders.end(), named) - orders.begin());
  if (choose("##order", orders, order, 112)) settings.order = parse_order(orders[order].name, {});
  tip(budget_option::order.meaning.data());

  constexpr std::array<std::string_view, 2> kNormalised = {"loss as it is", "by layer"};
  std::size_t normalised = settings.normalise_by_layer ? 1 : 0;
  flow(t.px(104));
  if (choose("##normalise", kNormalised, normalised, 104)) settings.normalise_by_layer = normalised == 1;
  tip(budget_option::normalise.meaning.data());

  flow(t.px(82));
  choose("##semantics", kSemantics, settings.semantics, 82);
  tip("Whose pyramid and ada: the papers', their authors' code's, or kvpress 0.5.4's. These two do not keep "
      "to the "
      "total exactly.");
  flow(ImGui::CalcTextSize("Pins").x + t.px(14));
  edit_pins(run, settings);

  flow(t.px(190));
  ImGui::SetNextItemWidth(
      std::clamp(ImGui::GetContentRegionAvail().x - link_width() - t.px(2), t.px(120), t.px(260)));
  const double before = settings.sigma;
  ImGui::PushFont(mono_font());
  edit_kept_share(settings.sigma, "kept %.1f %%");
  ImGui::PopFont();
  if (settings.linked && settings.sigma != before) desk = {.sigma_budget = true, .sigma = settings.sigma};
  tip("The share of all heads' tokens that is kept, divided between the heads");
  ImGui::SameLine(0, 0);
  link_toggle(settings.linked);
}

void choose_budgets(const Run& run, const BudgetResultSource& source, std::string& order,
                    std::string& sigma) {
  const auto one_of = [](const char* id, const std::vector<std::string>& names, std::string& chosen,
                         float width, std::string (*label_of)(std::string_view)) {
    std::vector<std::string> labels;
    for (const std::string& name : names) labels.push_back(label_of(name));
    const std::vector<std::string_view> views(labels.begin(), labels.end());
    auto at = static_cast<std::size_t>(std::find(names.begin(), names.end(), chosen) - names.begin());
    if (at < names.size() && choose(id, views, at, width)) chosen = names[at];
  };
  one_of("##order", source.orders(), order, 112, [](std::string_view name) { return std::string(name); });
  tip(budget_option::order.meaning.data());
  flow(theme().px(90));
  ImGui::AlignTextToFramePadding();
  one_of("##sigma", source.sigmas(order), sigma, 100, kept_text);
  tip("The share of all heads' tokens that is kept, divided between the heads");
  flow(ImGui::CalcTextSize("as the result folder has them").x);
  ImGui::AlignTextToFramePadding();
  dim_text("as the result folder has them");
  tip(("Other totals are computed from the dump, and this run has none: " + run.why_no_dump()).c_str());
}

}  // namespace kvreplay::viewer
