#include "viewer/panels/heads/head_parts.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/questions/named_choices.hpp"
#include "viewer/questions/what_if_figures.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace kvreplay::viewer {
namespace {

template <class T>
void add_new(std::vector<T>& values, T value) {
  if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
}

/// A word between two controls, at the height of their text.
void word(const char* text) {
  text_beside(text);
  ImGui::SameLine(0, theme().px(6));
}

/// Plain title of a step of a metric's path, and its name if that differs.
std::pair<std::string, std::string> in_menu(const std::string& step) {
  if (const auto metric = kTokenMetrics.named(step)) return {std::string(kTokenMetrics[*metric].plain), step};
  for (const Table table : kTables.all())
    if (const FigureFacts* const facts = figure_named(table, step); facts != nullptr && !facts->title.empty())
      return {std::string(facts->title), step};
  return {step, ""};
}

/// The name under which the menus have it: of what settings cost that of setting A.
std::string listed_name(const FigureInfo& figure) {
  const auto of = setting_figure_named(figure.name);
  return of ? name_of(SettingFigure{SettingView::a, of->figure}) : figure.name;
}

}  // namespace

HeadMapControls::Node& HeadMapControls::Node::child(const std::string& wanted) {
  for (Node& node : children)
    if (node.name == wanted) return node;
  children.push_back({wanted, {}, nullptr});
  return children.back();
}

void HeadMapControls::list(const HeadMapSource& source) {
  if (listed_ == source.list()) return;
  listed_ = source.list();
  menu_ = {};
  pairs_.clear();
  choices_.clear();
  for (const FigureInfo& info : source.figures()) {
    if (listed_name(info) != info.name) continue;
    choices_.push_back(
        {.name = info.name, .plain = info.title, .tip = about(info), .group = facts_of(info.table).title});
    Node* node = &menu_.child(std::string(facts_of(info.table).title));
    for (const std::string& step : info.path) node = &node->child(step);
    node->figure = &info;
    const auto figure = head_figure_named(info.name);
    if (!figure || !figure->reference) continue;
    const bool known = std::any_of(pairs_.begin(), pairs_.end(), [&](const TokenPair& pair) {
      return pair.score == figure->metric && pair.reference == *figure->reference;
    });
    if (!known) pairs_.push_back({figure->metric, *figure->reference});
  }
}

const FigureInfo* HeadMapControls::cost(const AppState& state, const HeadMapSource& source,
                                        SettingView view) const {
  const Dump* const dump = state.run() ? state.run()->dump() : nullptr;
  if (dump == nullptr) return nullptr;
  const auto& all = what_if_figures();
  const auto chosen =
      std::find_if(all.begin(), all.end(), [&](const WhatIfFigure& figure) { return figure.name == cost_; });
  for (const std::size_t figure :
       {chosen != all.end() ? static_cast<std::size_t>(chosen - all.begin()) : main_cost(*dump),
        main_cost(*dump)})
    for (const SettingView wanted : {view, SettingView::a})
      if (const FigureInfo* info = source.find(name_of(SettingFigure{wanted, figure}))) return info;
  return nullptr;
}

const FigureInfo* HeadMapControls::agreement(const AppState& state, const HeadMapSource& source) const {
  const Comparison& c = state.comparison;
  for (const AgreementFigure measure : {measure_, AgreementFigure::spearman})
    if (const FigureInfo* info = source.find(name_of(HeadFigure{c.score, c.reference, measure}))) return info;
  const auto& all = source.figures();
  const auto first = std::find_if(all.begin(), all.end(),
                                  [](const FigureInfo& info) { return info.table == Table::agreement; });
  return first != all.end() ? &*first : nullptr;
}

const FigureInfo* HeadMapControls::shown(const AppState& state, const HeadMapSource& source) const {
  if (source.figures().empty()) return nullptr;
  if (kind_ == Kind::fixed)
    if (const FigureInfo* info = source.find(fixed_)) return info;
  if (kind_ != Kind::agreement)
    if (const FigureInfo* info = cost(state, source, view_)) return info;
  const FigureInfo* const follows = agreement(state, source);
  return follows != nullptr ? follows : &source.figures().front();
}

const FigureInfo* HeadMapControls::counterpart(const AppState& state, const HeadMapSource& source,
                                               const FigureInfo& shown) const {
  return setting_figure_named(shown.name) ? agreement(state, source) : cost(state, source, SettingView::a);
}

void HeadMapControls::choose_figure(AppState& state, const FigureInfo& figure) {
  if (const auto of = setting_figure_named(figure.name)) {
    kind_ = Kind::cost;
    cost_ = what_if_figures()[of->figure].name;
    return;
  }
  const auto named = head_figure_named(figure.name);
  if (!named || !named->reference) {
    kind_ = Kind::fixed;
    fixed_ = figure.name;
    return;
  }
  // An agreement is looked at in all panels that compare.
  kind_ = Kind::agreement;
  measure_ = named->figure;
  state.comparison.score = named->metric;
  state.comparison.reference = *named->reference;
}

void HeadMapControls::draw_menu(AppState& state, const Node& node, const FigureInfo* shown) {
  for (const Node& child : node.children) {
    if (child.figure != nullptr) {
      const auto [first, second] = in_menu(child.name);
      if (ImGui::MenuItem(first.c_str(), second.c_str(),
                          shown != nullptr && child.figure->name == listed_name(*shown)))
        choose_figure(state, *child.figure);
      tip(about(*child.figure).c_str());
    }
    const auto [first, second] = in_menu(child.name);
    if (!child.children.empty() &&
        ImGui::BeginMenu((second.empty() ? first : fmt::format("{} ({})", first, second)).c_str())) {
      draw_menu(state, child, shown);
      ImGui::EndMenu();
    }
  }
}

/// Score and reference, of all panels.
void HeadMapControls::draw_pair(AppState& state) {
  Comparison& c = state.comparison;
  std::vector<TokenMetric> scores, references;
  for (const TokenPair& pair : pairs_) {
    add_new(scores, *pair.score.metric);
    if (pair.score == c.score) add_new(references, pair.reference);
  }
  const auto pick = [&](const char* id, std::vector<TokenMetric> metrics, TokenMetric& metric, float width) {
    add_new(metrics, metric);  // what another panel compares, though this run has no agreement of it
    std::vector<Choice> choices;
    for (const TokenMetric m : metrics) choices.push_back(choice_of(m));
    const auto at = std::find(metrics.begin(), metrics.end(), metric);
    auto chosen = static_cast<std::size_t>(at - metrics.begin());
    if (!choose(id, choices, chosen, width)) return false;
    metric = metrics[chosen];
    return true;
  };
  bool changed = pick("##score", scores, c.score, 104);
  tip("The score that is compared, in all panels:\n" + about(choice_of(c.score)));
  flow(ImGui::CalcTextSize("against").x + theme().px(6 + 118));
  word("against");
  changed |= pick("##reference", references, c.reference, 118);
  tip("What it is held against, in all panels:\n" + about(choice_of(c.reference)));
  if (!changed) return;
  kind_ = Kind::agreement;
  const auto has = [&](TokenMetric reference) {
    return std::any_of(pairs_.begin(), pairs_.end(), [&](const TokenPair& pair) {
      return pair.score == c.score && pair.reference == reference;
    });
  };
  if (has(c.reference)) return;
  const auto first = std::find_if(pairs_.begin(), pairs_.end(),
                                  [&](const TokenPair& pair) { return pair.score == c.score; });
  c.reference = has(TokenMetric::exact_remove) ? TokenMetric::exact_remove : first->reference;
}

/// Choice of the settings whose cost is shown.
void HeadMapControls::draw_views(const AppState& state, const FigureInfo& shown) {
  const SettingFigure of = *setting_figure_named(shown.name);
  const bool exact = what_if_figures()[of.figure].is_cost();
  std::vector<std::string_view> labels;
  for (const SettingViewFacts& view : kSettingViews)
    if (exact || view.id != SettingView::beyond_exact) labels.push_back(view.label);
  auto chosen = static_cast<std::size_t>(of.view);
  if (segments("view", labels, chosen)) {
    kind_ = Kind::cost;
    view_ = kSettingViews.all()[chosen];
  }
  tip(fmt::format("{}\nA: {}\nB: {}", kSettingViews[kSettingViews.all()[chosen]].meaning,
                  state.settings()[0].policy(), state.settings()[1].policy()));
}

const FigureInfo* HeadMapControls::draw(PanelContext& context, const HeadMapSource& source) {
  list(source);
  const FigureInfo* figure = shown(context.state, source);
  if (figure == nullptr) return nullptr;
  const auto setting = setting_figure_named(figure->name);
  const auto named = head_figure_named(figure->name);
  const bool agreement = named && named->reference && source.find(name_of(*named)) == figure;
  // Read as a sentence: "spearman of attn against exact_remove".
  const float pair_width = theme().px(104 + 118 + 24) + ImGui::CalcTextSize("ofagainst").x;
  const float views_width = ImGui::CalcTextSize("ABB - AA - exact").x + 9 * ImGui::GetStyle().FramePadding.x;
  const float room = ImGui::GetContentRegionAvail().x;
  const float beside = room - (setting ? views_width : agreement ? pair_width : 0) - theme().px(6);
  const float least = theme().px(agreement ? 84 : 120), most = theme().px(agreement ? 118
                                                                          : setting ? 200
                                                                                    : 440);
  const bool one_row = beside > least;
  ImGui::SetNextItemWidth(one_row ? std::min(beside, most) : std::min(room, theme().px(380)));
  const std::string now = agreement && one_row ? std::string(name_of(named->figure))
                          : setting            ? what_if_figures()[setting->figure].title
                                               : figure->title;
  if (begin_combo("##figure", now, ImGuiComboFlags_HeightLargest)) {
    const auto found =
        choice_list(choices_, listed_name(*figure), [&] { draw_menu(context.state, menu_, figure); });
    if (found) {
      const auto& all = source.figures();
      const auto at = std::find_if(
          all.begin(), all.end(), [&](const FigureInfo& info) { return info.name == choices_[*found].name; });
      if (at != all.end()) choose_figure(context.state, *at);
    }
    ImGui::EndCombo();
  }
  tip(fmt::format("{}{}", about(*figure), source.from_results() ? "\nfrom the result folder" : "").c_str());
  if (setting) {
    if (one_row) ImGui::SameLine(0, theme().px(6));
    draw_views(context.state, *figure);
  } else if (agreement && !pairs_.empty()) {
    if (one_row) {
      ImGui::SameLine(0, theme().px(6));
      word("of");
    }
    draw_pair(context.state);
  }
  return shown(context.state, source);
}

void HeadMapControls::keep(SessionFields& fields) {
  fields.name("measure", measure_, in_table(kAgreementFigures));
  fields.name("view", view_, [](const std::string& name) { return kSettingViews.named(name); });
  std::string figure = kind_ == Kind::fixed ? fixed_ : kind_ == Kind::agreement ? "agreement" : cost_;
  fields.field("figure", figure);
  if (!fields.reads()) return;
  cost_.clear();
  fixed_.clear();
  const auto& all = what_if_figures();
  const bool is_cost = figure.empty() || std::any_of(all.begin(), all.end(), [&](const WhatIfFigure& one) {
                         return one.name == figure;
                       });
  if (const auto of = setting_figure_named(figure)) {
    kind_ = Kind::cost;
    view_ = of->view;
    cost_ = all[of->figure].name;
    return;
  }
  kind_ = is_cost ? Kind::cost : figure == "agreement" ? Kind::agreement : Kind::fixed;
  if (kind_ == Kind::fixed)
    fixed_ = figure;
  else if (is_cost)
    cost_ = figure;
}

}  // namespace kvreplay::viewer
