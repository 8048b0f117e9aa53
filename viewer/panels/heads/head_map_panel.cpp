#include "analysis/report/cell_map.hpp"
#include "analysis/report/figure.hpp"
#include "analysis/run/run.hpp"
#include "viewer/model/debounce.hpp"
#include "viewer/model/head_places.hpp"
#include "viewer/panels/head_grid.hpp"
#include "viewer/panels/heads/head_parts.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/panels/pinned_run.hpp"
#include "viewer/questions/command_text.hpp"
#include "viewer/questions/csv_table.hpp"
#include "viewer/questions/figure_map.hpp"
#include "viewer/questions/what_if_figures.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace kvreplay::viewer {
namespace {

/// Layers x KV heads as a heatmap, and the heads in a table, the worst first.
class HeadMapPanel final : public Panel {
 public:
  void draw(PanelContext& context) override;
  HeatmapView* heatmap() override { return sheet_shown_ ? &sheet_.heatmap() : &map_view_.heatmap(); }
  std::string figure_title(PanelContext& context) const override;
  std::vector<std::string> figure_settings(PanelContext& context) const override;
  std::string svg(PanelContext& context) const override;
  std::string csv(PanelContext& context) const override;
  void keep(SessionFields& fields) override;

 private:
  HeadPlaces arrange(ImVec2 room) const;
  void rank(PanelContext& context) const;
  void choose_mode();
  void draw_progress(PanelContext& context);
  void draw_parts(PanelContext& context);
  void draw_map(PanelContext& context, const HeadPlaces& places);
  void draw_plot(PanelContext& context, ImVec2 size);
  void draw_hit(const Run& run, Index hit) const;

  void take_map(PanelContext& context, const FigureInfo* figure);
  bool take_escape() override { return scatter_.choose_none(); }
  bool pending() const { return source_.pending() || (subtracted_ && pinned_.pending()); }

  HeadMapSource source_, pinned_, beside_;       // beside_: the plot's other figure
  std::shared_ptr<const Run> subtracted_;        // in this frame; null: none
  std::shared_ptr<const FigureMap> map_;         // what is shown; null: not known yet
  Key map_key_;                                  // says what it depends on
  std::shared_ptr<const FigureMap> difference_;  // of difference_key_
  Key difference_key_;
  bool missing_ = false;  // there is nothing to subtract
  std::optional<std::pair<std::chrono::steady_clock::time_point, Index>> begun_;  // when, with how many heads
  HeadMapControls controls_;
  HeadTable table_;
  HeadSheet sheet_;
  HeadScatter scatter_;
  bool sheet_shown_ = false;
  bool plot_shown_ = false;  // in the table's place, where there is no room for both
  HeadGrid map_view_;
  Debounce debounce_;  // with heads whose values are of other settings
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

HeadPlaces HeadMapPanel::arrange(ImVec2 room) const {
  const Theme& t = theme();
  HeadPlaceSizes sizes;
  // Room that HeatmapView takes for axes and the colour bar.
  sizes.around_x = t.px(44 + 80);
  sizes.around_y = 2 * ImGui::GetTextLineHeight() + t.px(14);
  sizes.table = {table_.least_width(), t.px(140)};
  sizes.plot = {t.px(230), t.px(150)};
  sizes.gap = t.px(10);
  sizes.point = t.px(1);
  return head_places(map_->values.rows(), map_->values.cols(), {room.x, room.y}, sizes, plot_shown_);
}

void HeadMapPanel::draw_progress(PanelContext& context) {
  for (const std::string& problem : source_.problems()) error_line(problem);
  if (source_.waits()) {
    if (ImGui::Button("Compute all heads")) source_.begin();
    tip("What the settings cost in every head. It takes more than a minute, so it waits to be asked.");
  }
  if (!pending()) return begun_.reset();
  const Index known = map_ ? map_->heads : 0;
  const auto now = context.state.clock();
  if (!begun_ || known < begun_->second) begun_ = {now, known};
  const double seconds = std::chrono::duration<double>(now - begun_->first).count();
  std::string text = "Reading the results";
  if (source_.heads() > 0 && !source_.from_results()) {
    text = fmt::format("{} of {} heads", known, source_.heads());
    const Index done = known - begun_->second;
    if (seconds > 2 && done > 0 && known < source_.heads())
      text += fmt::format(", {} left", clock_text(seconds * static_cast<double>(source_.heads() - known) /
                                                  static_cast<double>(done)));
  }
  dim_text(text);
  busy_mark();
}

void HeadMapPanel::draw_hit(const Run& run, Index hit) const {
  const FigureMap& map = *map_;
  const Index row = hit / map.values.cols(), head = hit % map.values.cols(), layer = map.layers[row];
  const double value = map.values(row, head);
  ImGui::BeginTooltip();
  ImGui::TextUnformatted(fmt::format("layer {}, KV head {}", run.layer_number(layer), head).c_str());
  figure(map.figure.path.back().c_str(), number_text(value));
  if (const Index rank = table_.rank(row, head); rank > 0)
    dim_text(fmt::format("{} of {}, {} first", rank, map.values.size(),
                         map.figure.facts.better != Better::neither ? "worst" : "largest"));
  else
    dim_text(pending() ? "not computed yet" : "no value");
  ImGui::EndTooltip();
}

/// Words for the two ends of the colour scale.
std::pair<std::string, std::string> end_words(const FigureMap& map, bool subtracted) {
  if (subtracted) return {"less", "more"};
  const auto of = setting_figure_named(map.figure.name);
  if (of && of->view == SettingView::difference) {
    const bool cost = what_if_figures()[of->figure].better == Better::smaller;
    return cost ? std::pair("A worse", "B worse") : std::pair("A more", "B more");
  }
  switch (map.figure.facts.better) {
    case Better::smaller:
      return {"better", "worse"};
    case Better::larger:
      return {"worse", "better"};
    case Better::neither:
      break;
  }
  return {};
}

void HeadMapPanel::draw_map(PanelContext& context, const HeadPlaces& places) {
  const FigureMap& map = *map_;
  HeadGridContent content;
  content.key = map_key_;
  content.layers = map.layers;
  content.value = [&map](Index head) { return map.values.data()[head]; };
  const auto now = context.state.clock();
  debounce_.wait(std::ranges::find(map.stale, 1) != map.stale.end(), now);
  if (const auto ends = debounce_.ends(now)) context.state.wake_at(*ends);
  if (debounce_.over(now)) content.stale = [&map](Index head) { return map.is_stale(head); };
  content.quantity =
      subtracted_ ? less_than_pinned(map.figure.path.back(), *subtracted_) : map.figure.path.back();
  content.unit = map.figure.facts.unit;
  const auto of = setting_figure_named(map.figure.name);
  content.is_signed = subtracted_ || (of && of->view == SettingView::difference) || has_both_signs(map);
  const Better better = map.figure.facts.better;
  content.bad = better == Better::smaller  ? BadEnd::high
                : better == Better::larger ? BadEnd::low
                                           : BadEnd::neither;
  std::tie(content.low_word, content.high_word) = end_words(map, subtracted_ != nullptr);
  const ScaleKind scale = scale_kind(map.figure.facts.scale);
  content.scale = content.is_signed && scale == ScaleKind::log ? ScaleKind::symlog : scale;
  // Heads with less than a millionth of the largest cost would take most of the colours.
  content.log_depth = 1e-6F;
  content.square = places.square;
  content.transposed = places.transposed;
  content.outline = true;
  if (const auto head = map_view_.draw({places.map.width, places.map.height}, content, context.state))
    draw_hit(*context.state.run(), *head);
}

/// Plot of each head's agreement between score and reference against the cost of a setting. If the map shows
/// another metric, that metric is plotted against the cost of setting A.
void HeadMapPanel::draw_plot(PanelContext& context, ImVec2 size) {
  beside_.look(context);
  const FigureInfo* const other = controls_.counterpart(context.state, beside_, source_.map()->figure);
  if (other == nullptr) return ImGui::Dummy(size);
  // The map first: it is what the user looks at.
  if (!source_.pending()) beside_.ask(context, *other);
  if (!beside_.map() || beside_.map()->figure.name != other->name) return ImGui::Dummy(size);
  const bool shows_cost = setting_figure_named(source_.map()->figure.name).has_value();
  scatter_.draw(context.state, size, shows_cost ? beside_.map() : source_.map(),
                shows_cost ? source_.map() : beside_.map(), *source_.map(), map_view_.heatmap());
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
    const HiddenDraw controls(context.figure);
    figure = controls_.draw(context, source_);
  }
  if (figure != nullptr) source_.ask(context, *figure);
  {
    const HiddenDraw controls(context.figure);
    choose_mode();
    choose_difference(context.state);
  }
  take_map(context, figure);
  draw_progress(context);
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

  draw_parts(context);
}

/// The map, and the same heads in a table and a plot.
void HeadMapPanel::draw_parts(PanelContext& context) {
  ImGui::Dummy({0, theme().px(2)});
  const ImVec2 at = ImGui::GetCursorScreenPos(), room = ImGui::GetContentRegionAvail();
  HeadPlaces places = arrange(room);
  const bool one = places.table.width == 0 || places.plot.width == 0;
  draw_map(context, places);
  const auto begin = [&](const Area& area) { ImGui::SetCursorScreenPos({at.x + area.x, at.y + area.y}); };
  Area& first = places.table.width > 0 ? places.table : places.plot;
  if (one && !context.figure) {
    begin(first);
    either("part", "Table", "Plot", plot_shown_);
    const float line = ImGui::GetFrameHeightWithSpacing();
    first.y += line;
    first.height -= line;
  }
  if (places.table.width > 0) {
    begin(places.table);
    table_.draw(context, {places.table.width, places.table.height}, map_view_.heatmap());
  }
  if (places.plot.width > 0) {
    begin(places.plot);
    draw_plot(context, {places.plot.width, places.plot.height});
  }
  table_.choose(scatter_.chosen());
}

std::string HeadMapPanel::figure_title(PanelContext&) const {
  if (sheet_shown_) return sheet_.title();
  if (!map_) return {};
  const FigureInfo& figure = map_->figure;
  const std::string title = subtracted_ ? less_than_pinned(figure.title, *subtracted_) : figure.title;
  return figure.facts.unit.empty() ? title : fmt::format("{} ({})", title, figure.facts.unit);
}

std::vector<std::string> HeadMapPanel::figure_settings(PanelContext& context) const {
  std::vector<std::string> lines;
  if (map_ && !sheet_shown_ && setting_figure_named(map_->figure.name)) lines = settings_lines(context.state);
  if (subtracted_) lines.push_back("less " + subtracted_->path().string());
  return lines;
}

std::string HeadMapPanel::svg(PanelContext& context) const {
  if (!context.state.run() || !map_ || sheet_shown_) return {};
  std::vector<Index> numbers;
  for (const Index layer : map_->layers) numbers.push_back(context.state.run()->layer_number(layer).number);
  report::CellMap cells = report::map_of_heads(numbers, map_->values);
  cells.id = "heads";
  cells.title = cells.value_label = figure_title(context);
  // The colours of the screen, and its range unless powers of both signs would have to be drawn.
  const HeatmapView& screen = map_view_.heatmap();
  const ValueScale& scale = screen.scale();
  cells.scale = {.log = scale.kind == ScaleKind::log, .low = scale.low, .high = scale.high};
  if (scale.kind == ScaleKind::symlog)
    cells.scale = report::color_scale(FigureScale::signed_log,
                                      {map_->values.data(), static_cast<std::size_t>(map_->values.size())});
  constexpr int kColors = 256;
  for (int i = 0; i < kColors; ++i)
    cells.scale.colors.push_back(color_of(screen.colors(), static_cast<float>(i) / (kColors - 1)));
  return report::svg_of(cells);
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
  fields.field("plot_shown", plot_shown_);
}

}  // namespace

template <>
std::unique_ptr<Panel> make_panel<PanelKind::heads>() {
  return std::make_unique<HeadMapPanel>();
}

}  // namespace kvreplay::viewer
