#include "viewer/model/token_text.hpp"
#include "viewer/panels/no_dump.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/panels/pinned_run.hpp"
#include "viewer/panels/questions.hpp"
#include "viewer/panels/tokens/entry_question.hpp"
#include "viewer/panels/tokens/token_map_controls.hpp"
#include "viewer/panels/tokens/token_map_strips.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"
#include "viewer/work/command_text.hpp"
#include "viewer/work/csv_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay::viewer {
namespace {

constexpr std::size_t kLongestTokenText = 14;
/// Cells of an export.
constexpr std::size_t kMostCells = 4'000'000;

/// Rows x tokens of the selected head.
class TokenMapPanel final : public Panel {
 public:
  void draw(PanelContext& context) override;
  HeatmapView* heatmap() override { return &map_; }
  std::string figure_title(PanelContext& context) const override;
  std::vector<std::string> figure_settings(PanelContext& context) const override;
  std::string csv(PanelContext& context) const override;
  nlohmann::json save() const override;
  void load(const nlohmann::json& json) override;

 private:
  std::string quantity(PanelContext& context) const;
  HeatmapContent content(PanelContext& context, const EntryView& view);
  void fade_evicted(PanelContext& context, HeatmapContent& content) const;
  void react(PanelContext& context, const HeatmapHit& hit);
  void select(PanelContext& context, std::optional<Index> row, std::optional<Index> token);
  void tooltip(const Run& run, const std::string& quantity, const HeatmapHit& hit) const;

  TokenMapControls controls_;
  HeatmapView map_;
  EntryQuestions entries_;
  std::optional<Index> followed_token_, followed_row_;
  std::string error_;
  bool pending_ = false;
};

void TokenMapPanel::draw(PanelContext& context) {
  const Run& run = *context.state.run();
  if (run.dump() == nullptr)
    return hint_no_dump(context.state,
                        "Single rows need the dump, which is not at hand: " + run.why_no_dump());
  if (run.shape().T_q < 1) return hint("The dump holds no queries.");
  {
    const OutOfSight controls(context.figure);
    controls_.draw(context.state);
    choose_difference(context.state);
    if (const std::shared_ptr<const Run> run = context.state.subtracted(); run && run->dump() == nullptr)
      error_line(fmt::format("{} has no dump: its cells cannot be subtracted.", run->name()));
    if (pending_) busy_mark();
  }
  if (!error_.empty()) error_line(error_);
  const EntryView view = controls_.view(context.state.selection());
  error_.clear();
  pending_ = false;
  if (const std::string why = why_not(view); !why.empty()) return hint(why);
  const Selection& selected = context.state.selection();
  if (selected.token != followed_token_ || selected.row != followed_row_) {
    followed_token_ = selected.token;
    followed_row_ = selected.row;
    if (selected.token && selected.row) map_.show(*selected.row - run.shape().first_query(), *selected.token);
  }
  const HeatmapContent shown = content(context, view);
  const HeatmapHit hit = map_.draw("tokens", ImGui::GetContentRegionAvail(), shown, context.state.links);
  if (hit.hovered) tooltip(run, shown.quantity, hit);
  if (hit.strip) {
    const StripTip tip{run, shown, std::string(name_of(controls_.shown())), pending_};
    draw_strip_tip(tip, *hit.strip);
  }
  react(context, hit);
}

std::string TokenMapPanel::quantity(PanelContext& context) const {
  const std::shared_ptr<const Run> run = subtracted_entries(context);
  return run ? less_than_pinned(controls_.quantity(), *run) : controls_.quantity();
}

HeatmapContent TokenMapPanel::content(PanelContext& context, const EntryView& view) {
  const std::shared_ptr<const Run>& run = context.state.run();
  const DumpShape& shape = run->shape();
  const Selection& selected = context.state.selection();
  HeatmapContent c;
  c.key = EntryQuestions::key_of(context, view);
  c.size = {shape.T_q, shape.T};
  c.tile = [this, &context, view](const TileKey& key) {
    Answer<Tile> answer = entries_.tile(context, view, key);
    if (!answer.error.empty()) error_ = answer.error;
    pending_ |= answer.pending;
    return answer;
  };
  const bool subtracted = subtracted_entries(context) != nullptr;
  c.quantity = quantity(context);
  c.unit = controls_.unit();
  c.is_signed = subtracted || controls_.is_signed();
  c.scale = subtracted || controls_.spans_decades() ? ScaleKind::symlog
            : c.is_signed                           ? ScaleKind::linear
                                                    : ScaleKind::log;
  c.range.kind = RangeKind::percentiles;
  c.range.low_percent = c.is_signed ? 0.5 : 20;
  c.range.high_percent = c.is_signed ? 99.5 : 100;
  c.row_name = "query";
  c.column_name = "token";
  c.first_row = shape.first_query();
  c.link = {run->key(), "tokens"};
  if (run->labels())
    c.column_text = [&labels = run->labels()](Index column) {
      return token_text(labels, column, kLongestTokenText);
    };
  if (run->labels())
    c.row_text = [&labels = run->labels(), first = shape.first_query()](Index row) {
      return token_text(labels, first + row, kLongestTokenText);
    };
  c.selected_columns = selected.tokens;
  if (selected.row) c.row = *selected.row - shape.first_query();
  c.column = selected.token;
  if (context.state.hover.row) c.hover_row = *context.state.hover.row - shape.first_query();
  c.hover_column = context.state.hover.token;
  if (controls_.strips()) add_strips({context, entries_, view, pending_, error_}, c);
  fade_evicted(context, c);
  return c;
}

void TokenMapPanel::fade_evicted(PanelContext& context, HeatmapContent& content) const {
  if (!context.state.show_kept) return;
  const Selection& selected = context.state.selection();
  const Answer<WhatIf> answer =
      ask_kept_set(context, context.state.setting(), selected.layer, selected.kv_head, Urgency::soon,
                   {context.state.run()->key(), "token_map"});
  if (!answer) return;
  content.faded_columns.assign(content.size.columns, 0);
  const std::size_t l = std::min(answer->kept.size(), content.faded_columns.size());
  for (std::size_t p = 0; p < l; ++p) content.faded_columns[p] = answer->kept[p] == 0 ? 1 : 0;
}

void TokenMapPanel::react(PanelContext& context, const HeatmapHit& hit) {
  const Index first = context.state.run()->shape().first_query();
  if (hit.columns_chosen) {
    std::vector<Index> tokens;
    for (Index p = hit.columns_chosen->first; p < hit.columns_chosen->second; ++p) tokens.push_back(p);
    context.state.select_tokens(std::move(tokens));
  }
  if (hit.strip) {
    const Selection& selected = context.state.selection();
    std::optional<Index> row = selected.row, token = selected.token;
    (hit.strip->of_rows ? row : token) = hit.strip->cell + (hit.strip->of_rows ? first : 0);
    (hit.strip->of_rows ? context.state.next_hover.row : context.state.next_hover.token) =
        hit.strip->of_rows ? row : token;
    if (hit.strip->clicked) select(context, row, token);
  }
  if (!hit.hovered) return;
  context.state.next_hover.row = hit.row + first;
  context.state.next_hover.token = hit.column;
  if (hit.clicked) select(context, hit.row + first, hit.column);
}

/// What was clicked here is in view already.
void TokenMapPanel::select(PanelContext& context, std::optional<Index> row, std::optional<Index> token) {
  context.state.select_cell(row, token);
  followed_row_ = row;
  followed_token_ = token;
}

void TokenMapPanel::tooltip(const Run& run, const std::string& quantity, const HeatmapHit& hit) const {
  ImGui::BeginTooltip();
  place_line(run, "query", hit.row + run.shape().first_query());
  place_line(run, "token", hit.column);
  if (!hit.value)
    dim_text("not computed yet");
  else if (std::isnan(*hit.value))
    dim_text("hidden from this query");
  else
    figure((quantity + (hit.single_cell ? "" : ", largest here")).c_str(),
           number_text(static_cast<double>(*hit.value)));
  ImGui::EndTooltip();
}

std::string TokenMapPanel::figure_title(PanelContext& context) const {
  const std::string unit = controls_.unit();
  return fmt::format("{}{} of every query and token{}", quantity(context),
                     unit.empty() ? "" : fmt::format(" ({})", unit),
                     context.state.show_kept ? ", evicted tokens faded" : "");
}

std::vector<std::string> TokenMapPanel::figure_settings(PanelContext& context) const {
  AppState& state = context.state;
  std::vector<std::string> lines = with_pinned({}, state, subtracted_entries(context) != nullptr, "less");
  if (state.show_kept)
    lines.push_back(evict_options_text(state.setting(), find_score(state.scores, state.setting().score)));
  return lines;
}

std::string TokenMapPanel::csv(PanelContext& context) const {
  if (!why_not(controls_.view(context.state.selection())).empty()) return {};
  const DumpShape& shape = context.state.run()->shape();
  CsvTable table(fmt::format("query,token,cells_a_side,{}{}", name_of(controls_.shown()),
                             subtracted_entries(context) ? "_less_pinned" : ""));
  int level = 0;
  for (const auto& [key, tile] : map_.tiles()) level = std::max(level, key.level);
  if (const auto camera = map_.camera()) level = drawn_level(*camera, {shape.T_q, shape.T});
  for (const auto& [key, tile] : map_.tiles()) {
    if (key.level != level) continue;
    for (Index r = 0; r < tile->rows; ++r)
      for (Index c = 0; c < tile->columns && table.rows() < kMostCells; ++c) {
        const float v = tile->values[r * tile->columns + c];
        if (std::isnan(v)) continue;
        table.row(shape.first_query() + ((key.row * kTileSize + r) << level),
                  (key.column * kTileSize + c) << level, Index{1} << level, v);
      }
  }
  return table.rows() > 0 ? table.text() : std::string();
}

nlohmann::json TokenMapPanel::save() const {
  nlohmann::json json = controls_.save();
  json["map"] = map_.save();
  return json;
}

void TokenMapPanel::load(const nlohmann::json& json) {
  if (!json.is_object()) return;
  controls_.load(json);
  if (json.contains("map")) map_.load(json["map"]);
}

}  // namespace

template <>
std::unique_ptr<Panel> make_panel<PanelKind::tokens>() {
  return std::make_unique<TokenMapPanel>();
}

}  // namespace kvreplay::viewer
