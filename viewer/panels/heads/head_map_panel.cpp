#include "viewer/model/choice.hpp"
#include "viewer/panels/head_grid.hpp"
#include "viewer/panels/heads/head_sheet.hpp"
#include "viewer/panels/heads/head_table.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/panels/pinned_run.hpp"
#include "viewer/questions/csv_table.hpp"
#include "viewer/questions/figure_map.hpp"
#include "viewer/questions/named_choices.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::viewer {
namespace {

/// Which figure the head map shows, and the controls that choose it. Unless another figure was chosen it is
/// one measure of how well the score that is compared follows the reference (AppState::comparison).
class HeadMapControls {
 public:
  /// Draws the controls; null where the run has no figure to show.
  const FigureInfo* draw(PanelContext& context, const HeadMapSource& source);
  /// What draw() would return, without drawing.
  const FigureInfo* shown(const AppState& state, const HeadMapSource& source) const;

  void keep(SessionFields& fields);

 private:
  struct Node {
    std::string name;
    std::vector<Node> children;
    const FigureInfo* figure = nullptr;
    Node& child(const std::string& name);
  };
  void list(const HeadMapSource& source);
  void choose_figure(AppState& state, const FigureInfo& figure);
  void draw_menu(AppState& state, const Node& node, const FigureInfo* shown);
  void draw_pair(AppState& state);

  std::optional<std::string> fixed_;                     // a figure that stays, whatever is compared
  AgreementFigure measure_ = AgreementFigure::spearman;  // else
  std::uint64_t listed_ = 0;                             // HeadMapSource::list() that the rest was made of
  Node menu_;
  std::vector<Choice> choices_;   // the same as a list, one of each of HeadMapSource::figures()
  std::vector<TokenPair> pairs_;  // that the run has an agreement of
};

template <class T>
void add_new(std::vector<T>& values, T value) {
  if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
}

/// A word between two controls, at the height of their text.
void word(const char* text) {
  text_beside(text);
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

void HeadMapControls::keep(SessionFields& fields) {
  fields.name("measure", measure_, in_table(kAgreementFigures));
  std::string figure = fields.reads() ? "" : fixed_.value_or("");
  if (fields.reads() || fixed_) fields.field("figure", figure);
  fixed_ = figure.empty() ? std::nullopt : std::optional(figure);
}

constexpr float kLeastMapSide = 120;  // points

/// Layers x KV heads as a heatmap, and the heads in a table, the worst first.
class HeadMapPanel final : public Panel {
 public:
  void draw(PanelContext& context) override;
  HeatmapView* heatmap() override { return sheet_shown_ ? &sheet_.heatmap() : &map_view_.heatmap(); }
  std::string figure_title(PanelContext& context) const override;
  std::vector<std::string> figure_settings(PanelContext&) const override {
    if (!subtracted_) return {};
    return {"less " + subtracted_->path().string()};
  }
  std::string csv(PanelContext& context) const override;
  void keep(SessionFields& fields) override;

 private:
  struct Places {
    bool beside = false;
    ImVec2 map, table;
    bool square = false;
  };
  Places arrange(ImVec2 room) const;
  void rank(PanelContext& context) const;
  void choose_mode();
  void draw_progress();
  void draw_map(PanelContext& context, ImVec2 size, bool square);
  void draw_hit(Index hit) const;

  void take_map(PanelContext& context, const FigureInfo* figure);
  bool pending() const { return source_.pending() || (subtracted_ && pinned_.pending()); }

  HeadMapSource source_, pinned_;
  std::shared_ptr<const Run> subtracted_;        // in this frame; null: none
  std::shared_ptr<const FigureMap> map_;         // what is shown; null: not known yet
  Key map_key_;                                  // says what it depends on
  std::shared_ptr<const FigureMap> difference_;  // of difference_key_
  Key difference_key_;
  bool missing_ = false;  // there is nothing to subtract
  HeadMapControls controls_;
  HeadTable table_;
  HeadSheet sheet_;
  bool sheet_shown_ = false;
  HeadGrid map_view_;
};

/// Both signs, none of them by rounding only.
bool has_both_signs(const FigureMap& map) {
  double low = 0, high = 0;
  for (Index i = 0; i < map.values.size(); ++i) {
    const double v = map.values.data()[i];
    if (!std::isfinite(v)) continue;
    low = std::min(low, v);
    high = std::max(high, v);
  }
  return std::min(-low, high) > 0.02 * std::max(-low, high);
}

/// Beside each other, or below where that leaves small cells larger.
HeadMapPanel::Places HeadMapPanel::arrange(ImVec2 room) const {
  const Theme& t = theme();
  const auto rows = static_cast<float>(map_->values.rows());
  const auto heads = static_cast<float>(map_->values.cols());
  const float gap = t.px(10), table_width = table_.least_width();
  // What HeatmapView takes for axes and the colour bar.
  const float around_x = t.px(44 + 70), around_y = 2 * ImGui::GetTextLineHeight() + t.px(14);
  const auto cell = [&](float width, float height) {
    return std::max(1.0F, std::min((width - around_x) / heads, (height - around_y) / rows));
  };
  // A map of many rows needs the height more than the table does.
  float table_height = std::clamp(room.y * 0.5F, t.px(140), t.px(190));
  if (cell(room.x, room.y - table_height - gap) < t.px(14)) table_height = t.px(140);
  room.y = std::max(room.y, t.px(kLeastMapSide) + gap + table_height);  // beyond what there is, it scrolls
  const float beside = cell(room.x - table_width - gap, room.y),
              below = cell(room.x, room.y - table_height - gap);
  Places places;
  // Such cells are large enough: rows for the table.
  places.beside = room.x - table_width - gap >= around_x + t.px(24) && beside >= std::min(below, t.px(18));
  const float side = std::min(places.beside ? beside : below, t.px(72));
  // Square cells, unless they would be too flat to point at: then they are wider than high.
  places.square = side >= t.px(7);
  const float most_wide = places.square ? side * heads : std::max(side, t.px(14)) * heads;
  const float most_high = places.square ? side * rows : std::max(side, t.px(14)) * rows;
  if (places.beside) {
    const float width = std::min(room.x - table_width - gap, most_wide + around_x);
    places.map = {width, places.square ? std::min(room.y, most_high + around_y) : room.y};
    places.table = {room.x - width - gap, room.y};
  } else {
    const float height = std::min(room.y - table_height - gap, most_high + around_y);
    places.map = {places.square ? std::min(room.x, most_wide + around_x) : room.x, height};
    places.table = {room.x, room.y - height - gap};
  }
  places.table.x = std::min(places.table.x, t.px(520));
  return places;
}

void HeadMapPanel::draw_progress() {
  for (const std::string& problem : source_.problems()) error_line(problem);
  if (!pending()) return;
  const Index known = map_ ? map_->heads : 0;
  dim_text(source_.heads() > 0 && !source_.from_results()
               ? fmt::format("{} of {} heads", known, source_.heads())
               : std::string("Reading the results"));
  busy_mark();
}

void HeadMapPanel::draw_hit(Index hit) const {
  const FigureMap& map = *map_;
  const Index row = hit / map.values.cols(), head = hit % map.values.cols(), layer = map.layers[row];
  const double value = map.values(row, head);
  ImGui::BeginTooltip();
  ImGui::Text("layer %d, KV head %d", static_cast<int>(layer), static_cast<int>(head));
  figure(map.figure.path.back().c_str(), number_text(value));
  if (const Index rank = table_.rank(row, head); rank > 0)
    dim_text(fmt::format("{} of {}, {} first", rank, map.values.size(),
                         map.figure.facts.better != Better::neither ? "worst" : "largest"));
  else
    dim_text(pending() ? "not computed yet" : "no value");
  ImGui::EndTooltip();
}

void HeadMapPanel::draw_map(PanelContext& context, ImVec2 size, bool square) {
  const FigureMap& map = *map_;
  HeadGridContent content;
  content.key = map_key_;
  content.layers = map.layers;
  content.value = [&map](Index head) { return map.values.data()[head]; };
  content.quantity =
      subtracted_ ? less_than_pinned(map.figure.path.back(), *subtracted_) : map.figure.path.back();
  content.unit = map.figure.facts.unit;
  content.is_signed = subtracted_ || has_both_signs(map);
  const ScaleKind scale = scale_kind(map.figure.facts.scale);
  content.scale = content.is_signed && scale == ScaleKind::log ? ScaleKind::symlog : scale;
  content.square = square;
  content.outline = true;
  if (const auto head = map_view_.draw(size, content, context.state)) draw_hit(*head);
}

/// The figure's map, or what of it is other in the pinned run.
void HeadMapPanel::take_map(PanelContext& context, const FigureInfo* figure) {
  map_ = source_.map();
  map_key_ = source_.key();
  subtracted_ = context.state.subtracted();
  if (!subtracted_) return;
  PanelContext of_pinned = context.of(subtracted_);
  pinned_.look(of_pinned);
  const FigureInfo* same = figure != nullptr ? pinned_.find(figure->name) : nullptr;
  if (same != nullptr) pinned_.ask(of_pinned, *same);
  map_key_ = {map_key_, "minus", pinned_.key()};
  const bool known = source_.map() && same != nullptr && pinned_.map();
  if (!known) {
    map_ = nullptr;
    difference_.reset();
    missing_ = same == nullptr && figure != nullptr && !pinned_.pending();
    return;
  }
  if (!difference_ || difference_key_ != map_key_) {
    difference_key_ = map_key_;
    const auto made = difference_map(*source_.map(), *pinned_.map());
    difference_ = made ? std::make_shared<const FigureMap>(*made) : nullptr;
  }
  map_ = difference_;
  missing_ = !difference_;
}

/// For the actions that step through the heads.
void HeadMapPanel::rank(PanelContext& context) const {
  context.state.worst_first.clear();
  for (const HeadPlace& place : table_.ranking())
    if (table_.takes(place)) context.state.worst_first.emplace_back(place.layer, place.kv_head);
  context.state.all_ranked = map_ && !pending() && map_->heads == map_->values.size();
}

void HeadMapPanel::choose_mode() {
  flow(theme().px(96));
  ImGui::BeginGroup();
  either("mode", "Map", "Sheet", sheet_shown_);
  ImGui::EndGroup();
  tip("A number of every head, or a small token map of every head");
  if (sheet_shown_) sheet_.draw_controls();
}

void HeadMapPanel::draw(PanelContext& context) {
  if (!context.state.run()) return hint("Open a dump or a result folder.");
  source_.look(context);
  const FigureInfo* figure = nullptr;
  {
    const OutOfSight controls(context.figure);
    figure = controls_.draw(context, source_);
  }
  if (figure != nullptr) source_.ask(context, *figure);
  {
    const OutOfSight controls(context.figure);
    choose_mode();
    choose_difference(context.state);
  }
  take_map(context, figure);
  draw_progress();
  if (sheet_shown_) {
    table_.show(map_, map_key_);
    rank(context);
    return sheet_.draw(context, ImGui::GetContentRegionAvail(), table_.ranking(),
                       map_ ? map_->figure.title : std::string());
  }
  if (figure == nullptr || !map_) {
    if (subtracted_ && missing_)
      hint(fmt::format("{} has no such figure of these heads to subtract.", subtracted_->name()));
    else if (!pending() && source_.problems().empty())
      hint("This run has no figures of heads.");
    return;
  }
  table_.show(map_, map_key_);
  rank(context);

  ImGui::Dummy({0, theme().px(2)});
  const ImVec2 at = ImGui::GetCursorScreenPos(), room = ImGui::GetContentRegionAvail();
  const Places places = arrange(room);
  draw_map(context, places.map, places.square);
  const float gap = theme().px(10);
  ImGui::SetCursorScreenPos(places.beside ? ImVec2{at.x + places.map.x + gap, at.y}
                                          : ImVec2{at.x, at.y + places.map.y + gap});
  table_.draw(context, places.table, map_view_.heatmap());
}

std::string HeadMapPanel::figure_title(PanelContext&) const {
  if (sheet_shown_) return sheet_.title();
  if (!map_) return {};
  const FigureInfo& figure = map_->figure;
  const std::string title = subtracted_ ? less_than_pinned(figure.title, *subtracted_) : figure.title;
  return figure.facts.unit.empty() ? title : fmt::format("{} ({})", title, figure.facts.unit);
}

std::string HeadMapPanel::csv(PanelContext& context) const {
  if (!context.state.run() || !map_) return {};
  const FigureMap& map = *map_;
  CsvTable table(fmt::format("layer,kv_head,{}{}", map.figure.name, subtracted_ ? "_less_pinned" : ""));
  for (Index row = 0; row < map.values.rows(); ++row)
    for (Index head = 0; head < map.values.cols(); ++head)
      table.row(map.layers[row], head, if_any(map.values(row, head)));
  return table.text();
}

void HeadMapPanel::keep(SessionFields& fields) {
  fields.part("controls", controls_);
  fields.part("heatmap", map_view_.heatmap());
  fields.part("sheet", sheet_);
  fields.field("sheet_shown", sheet_shown_);
}

}  // namespace

template <>
std::unique_ptr<Panel> make_panel<PanelKind::heads>() {
  return std::make_unique<HeadMapPanel>();
}

}  // namespace kvreplay::viewer
