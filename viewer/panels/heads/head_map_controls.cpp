#include "viewer/panels/heads/head_map_controls.hpp"

#include "viewer/model/session_keys.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"
#include "viewer/work/named_choices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvreplay::viewer {
namespace {

template <class T>
void add_new(std::vector<T>& values, T value) {
  if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
}

/// A word between two controls, at the height of their text.
void word(const char* text) {
  ImGui::AlignTextToFramePadding();
  dim_text(text);
  ImGui::SameLine(0, theme().px(6));
}

/// What a step of a figure's path says in plain words, and its name behind them, if that is another.
std::pair<std::string, std::string> in_menu(const std::string& step) {
  if (const auto metric = kTokenMetrics.named(step)) return {std::string(kTokenMetrics[*metric].plain), step};
  for (const Table table : kTables.all())
    if (const FigureFacts* const facts = figure_named(table, step); facts != nullptr && !facts->title.empty())
      return {std::string(facts->title), step};
  return {step, ""};
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

const FigureInfo* HeadMapControls::shown(const AppState& state, const HeadMapSource& source) const {
  if (source.figures().empty()) return nullptr;
  if (fixed_)
    if (const FigureInfo* info = source.find(*fixed_)) return info;
  const Comparison& c = state.comparison;
  for (const AgreementFigure measure : {measure_, AgreementFigure::spearman})
    if (const FigureInfo* info = source.find(name_of(HeadFigure{c.score, c.reference, measure}))) return info;
  for (const FigureInfo& info : source.figures())
    if (info.table == Table::agreement) return &info;
  return &source.figures().front();
}

void HeadMapControls::choose_figure(AppState& state, const FigureInfo& figure) {
  const auto named = head_figure_named(figure.name);
  if (!named || !named->reference) {
    fixed_ = figure.name;
    return;
  }
  // An agreement is looked at in all panels that compare.
  fixed_.reset();
  measure_ = named->figure;
  state.comparison.score = named->metric;
  state.comparison.reference = *named->reference;
}

void HeadMapControls::draw_menu(AppState& state, const Node& node, const FigureInfo* shown) {
  for (const Node& child : node.children) {
    if (child.figure != nullptr) {
      const auto [first, second] = in_menu(child.name);
      if (ImGui::MenuItem(first.c_str(), second.c_str(), child.figure == shown))
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
  fixed_.reset();
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

const FigureInfo* HeadMapControls::draw(PanelContext& context, const HeadMapSource& source) {
  list(source);
  const FigureInfo* figure = shown(context.state, source);
  if (figure == nullptr) return nullptr;
  const auto named = head_figure_named(figure->name);
  const bool agreement = named && named->reference && source.find(name_of(*named)) == figure;
  // Read as a sentence: "spearman of attn against exact_remove".
  const float pair_width = theme().px(104 + 118 + 24) + ImGui::CalcTextSize("ofagainst").x;
  const float room = ImGui::GetContentRegionAvail().x;
  const float beside = room - pair_width - theme().px(6);
  const bool one_row = !pairs_.empty() && beside > theme().px(agreement ? 84 : 220);
  ImGui::SetNextItemWidth(one_row ? std::min(beside, theme().px(agreement ? 118 : 440))
                                  : std::min(room, theme().px(380)));
  const std::string now(agreement ? std::string(name_of(named->figure)) : figure->title);
  if (begin_combo("##figure", one_row ? now : figure->title, ImGuiComboFlags_HeightLargest)) {
    const auto found = choice_list(choices_, figure->name, [&] { draw_menu(context.state, menu_, figure); });
    if (found) choose_figure(context.state, source.figures()[*found]);
    ImGui::EndCombo();
  }
  tip(fmt::format("{}{}", about(*figure), source.from_results() ? "\nfrom the result folder" : "").c_str());
  if (pairs_.empty()) return shown(context.state, source);
  if (one_row) {
    ImGui::SameLine(0, theme().px(6));
    if (agreement) word("of");
  }
  draw_pair(context.state);
  return shown(context.state, source);
}

nlohmann::json HeadMapControls::save() const {
  nlohmann::json json = {{"measure", name_of(measure_)}};
  if (fixed_) json["figure"] = *fixed_;
  return json;
}

void HeadMapControls::load(const nlohmann::json& json) {
  if (!json.is_object()) return;
  Keys keys(json);
  std::string name;
  keys.read("figure", name);
  fixed_.reset();
  if (!name.empty()) fixed_ = name;
  keys.read_name("measure", measure_, [](const std::string& text) { return kAgreementFigures.named(text); });
}

}  // namespace kvreplay::viewer
