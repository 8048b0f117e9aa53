#include "viewer/panels/budgets/budget_controls.hpp"

#include "analysis/results/kept_text.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/policy_controls.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"
#include "viewer/work/head_figures.hpp"
#include "viewer/work/named_choices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay::viewer {
namespace {

std::string changed_text(const BudgetSettings& settings) {
  std::vector<std::string> changed;
  if (settings.normalise) changed.push_back(settings.normalised() ? "normalised by layer" : "not normalised");
  if (settings.sinks) changed.push_back(fmt::format("sinks {}", *settings.sinks));
  if (settings.recent) changed.push_back(fmt::format("recent {}", *settings.recent));
  if (settings.floor) changed.push_back(fmt::format("floor {:.1f} %", 100 * *settings.floor));
  return fmt::format("{}", fmt::join(changed, ", "));
}

/// What the semantics choose, and what may be chosen in its place.
void edit_more(const Run& run, BudgetSettings& settings) {
  if (!settings_button(changed_text(settings))) return;
  const BudgetSemanticsFacts& own = kBudgetSemantics[settings.semantics];
  const Index l = run.shape().l;
  settings_row(budget_option::normalise);
  const std::string now = settings.normalise ? OptionValue<Normalise>::text(*settings.normalise)
                                             : "own: " + OptionValue<Normalise>::text(own.normalise);
  if (const auto at = combo("##normalise", now, {{.name = "own"}, {.name = "none"}, {.name = "layer"}})) {
    settings.normalise.reset();
    if (*at > 0) settings.normalise = *at == 1 ? Normalise::none : Normalise::layer;
  }
  settings_row(budget_option::sinks);
  edit_optional(budget_option::sinks, settings.sinks, fmt::format("own: {}", own.sinks), l);
  settings_row(budget_option::recent);
  edit_optional(budget_option::recent, settings.recent, own.keeps_window ? "own: the window" : "own: 0", l);
  settings_row(budget_option::floor);
  auto floor = static_cast<float>(settings.floor.value_or(own.floor));
  ImGui::SetNextItemWidth(-FLT_MIN);
  if (ImGui::SliderFloat("##floor", &floor, 0, 0.2F, "%.3f"))
    settings.floor = std::clamp(std::round(static_cast<double>(floor) * 1000) / 1000, 0.0, 0.999);
  end_settings();
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
