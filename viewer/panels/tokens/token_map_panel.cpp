#include "viewer/model/token_text.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/panels/pinned_run.hpp"
#include "viewer/questions/ask.hpp"
#include "viewer/questions/command_text.hpp"
#include "viewer/questions/csv_table.hpp"
#include "viewer/questions/entry_tiles.hpp"
#include "viewer/questions/state.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/heatmap_view.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay::viewer {
namespace {

/// View of the selected head in the token map, and its controls.
class TokenMapControls {
 public:
  /// Draws the controls, on more lines where the panel is narrow.
  void draw(AppState& state);
  EntryView view(const Selection& selection) const;
  bool strips() const { return strips_; }

  std::string quantity() const;  ///< "exact_remove", "(joint − exact_joint) / exact_joint"
  std::string unit() const;      ///< empty: a plain number
  bool compares() const { return against_ != EntryView::Against::nothing; }
  /// A comparison's differences may span decades; places lie within -1..1.
  bool spans_decades() const { return compares() && against_ != EntryView::Against::rank; }
  bool is_signed() const { return compares() || shown_ == EntryTerm::logit; }
  EntryTerm shown() const { return shown_; }

  void keep(SessionFields& fields);

 private:
  EntryTerm shown_ = EntryTerm::exact_remove, other_ = EntryTerm::attn;
  EntryView::Against against_ = EntryView::Against::nothing;
  bool strips_ = true;
};

using Against = EntryView::Against;

/// As they are offered. Ranks of any two quantities can be compared, so that they come first.
constexpr std::array kAgainst = {Against::nothing, Against::rank, Against::difference, Against::relative};
constexpr std::array<std::string_view, kAgainst.size()> kAgainstNames = {"as it is", "rank against",
                                                                         "difference to", "relative to"};

const std::vector<Choice>& entry_choices() {
  static const std::vector<Choice> all = [] {
    std::vector<Choice> choices = choices_of(kEntries);
    for (const EntryFacts& entry : kEntries) {
      const MetricKind kind = entry.metric ? kTokenMetrics[*entry.metric].kind : MetricKind::score;
      choices[static_cast<std::size_t>(entry.id)].group = kind == MetricKind::score ? "Estimates" : "Truth";
    }
    return choices;
  }();
  return all;
}

bool choose_entry(const char* id, EntryTerm& entry, float width) {
  auto at = static_cast<std::size_t>(entry);
  if (!choose(id, entry_choices(), at, width)) return false;
  entry = kEntries.all()[at];
  return true;
}

EntryView TokenMapControls::view(const Selection& selection) const {
  return {selection.layer, selection.kv_head, selection.query_head, shown_, against_, other_};
}

std::string TokenMapControls::quantity() const {
  const std::string shown(name_of(shown_)), other(name_of(other_));
  switch (against_) {
    case EntryView::Against::difference:
      return shown + " \xE2\x88\x92 " + other;
    case EntryView::Against::rank:
      return "rank of " + shown + " \xE2\x88\x92 rank of " + other;
    case EntryView::Against::relative:
      return "(" + shown + " \xE2\x88\x92 " + other + ") / " + other;
    case EntryView::Against::nothing:
      break;
  }
  return shown;
}

std::string TokenMapControls::unit() const {
  if (against_ == EntryView::Against::relative) return "";
  if (against_ == EntryView::Against::rank) return "share of the query's tokens";
  return std::string(kEntries[shown_].unit);
}

void TokenMapControls::draw(AppState& state) {
  constexpr float kEntryWidth = 132, kAgainstWidth = 118;
  auto against =
      static_cast<std::size_t>(std::find(kAgainst.begin(), kAgainst.end(), against_) - kAgainst.begin());
  choose_entry("##shown", shown_, kEntryWidth);
  tip(about(entry_choices()[static_cast<std::size_t>(shown_)]));
  flow(theme().px(kAgainstWidth));
  if (choose("##against", kAgainstNames, against, kAgainstWidth)) against_ = kAgainst[against];
  if (compares()) {
    flow(theme().px(kEntryWidth));
    choose_entry("##other", other_, kEntryWidth);
    tip(about(entry_choices()[static_cast<std::size_t>(other_)]));
  }
  flow(check_width("Fade evicted"));
  fade_evicted(state.show_kept);
  flow(check_width("Strips"));
  ImGui::Checkbox("Strips", &strips_);
  tip("Above the map what the queries of the window add up to, beside it one number a query");
}

void TokenMapControls::keep(SessionFields& fields) {
  fields.name("shown", shown_, in_table(kEntries));
  fields.name("other", other_, in_table(kEntries));
  int against = static_cast<int>(against_);
  fields.number("against", against, 0, static_cast<int>(kAgainst.size()) - 1);
  against_ = static_cast<Against>(against);
  fields.field("strips", strips_);
}

// Strips above and beside the token map, and common parts of its tooltips.

/// Sources of the strips' values. `pending` is set if some values are still being computed, `error` if a
/// computation failed. All members outlive the frame's map.
struct EntryStrips {
  PanelContext& context;
  EntryQuestions& entries;
  EntryView view;
  bool& pending;
  std::string& error;
};

struct StripTip {
  const Run& run;
  const HeatmapContent& content;
  std::string metric;  ///< what the strip above the tokens sums
  bool pending = false;
};

/// One row a pixel at most: the rows in view times all tokens is the most that is ever computed.
StripValues row_strip(const EntryStrips& asked, Index begin, Index end, double rows_per_pixel) {
  StripValues strip;
  while (static_cast<double>(2 * strip.step) <= rows_per_pixel) strip.step *= 2;
  const Index rows_a_block = kRowValues * strip.step;
  strip.first = begin / rows_a_block * rows_a_block;
  for (Index block = begin / rows_a_block; block * rows_a_block < end; ++block) {
    const Answer<RowValues> answer = asked.entries.rows(asked.context, asked.view, block, strip.step);
    asked.pending |= answer.pending;
    if (!answer.error.empty()) asked.error = answer.error;
    if (answer) strip.values.insert(strip.values.end(), answer->values.begin(), answer->values.end());
    const Index next = (block + 1) * kRowValues - strip.first / strip.step;
    strip.values.resize(next, std::numeric_limits<float>::quiet_NaN());
  }
  return strip;
}

/// The run whose cells are subtracted; null where that is none, or has no dump.
std::shared_ptr<const Run> subtracted_entries(PanelContext& context) {
  std::shared_ptr<const Run> run = context.state.subtracted();
  return run && run->dump() != nullptr ? run : nullptr;
}

/// Above the tokens what the rows of the window add up to, beside the rows one number of each.
void add_strips(const EntryStrips& asked, HeatmapContent& content) {
  PanelContext& context = asked.context;
  const EntryView& view = asked.view;
  const bool log = content.scale == ScaleKind::log;
  const std::shared_ptr<const Run> subtracted = subtracted_entries(context);
  content.row_strip = Strip{
      row_adds_up(view) && !subtracted ? "sum over the query's tokens" : "largest magnitude of the query",
      [asked](Index begin, Index end, double cells_per_pixel) {
        return row_strip(asked, begin, end, cells_per_pixel);
      },
      log};
  const std::optional<TokenMetric> metric = kEntries[view.shown].metric;
  if (!metric) return;
  // Its place is there from the start: the map must not jump when the sums arrive.
  content.column_strip = Strip{"sum over the window's queries", {}, true};
  const Answer<HeadSummary> summary = ask_summary(context, view.layer, view.kv_head, Urgency::soon);
  asked.pending |= summary.pending;
  Answer<HeadSummary> minus;
  if (subtracted) {
    PanelContext of_pinned = context.of(subtracted);
    minus = ask_summary(of_pinned, view.layer, view.kv_head, Urgency::soon);
    asked.pending |= minus.pending;
  }
  content.column_strip->values = [summary, minus, metric, less = subtracted != nullptr](Index begin,
                                                                                        Index end, double) {
    StripValues values{begin, 1, {}};
    if (!summary || !summary->tokens || (less && (!minus || !minus->tokens))) return values;
    const Matrix<double>& sums = (*summary->tokens)[*metric];
    if (sums.size() == 0) return values;
    for (Index p = begin; p < std::min(end, sums.cols()); ++p)
      values.values.push_back(
          static_cast<float>(sums(0, p) - (less ? (*minus->tokens)[*metric](0, p) : 0.0)));
    return values;
  };
}

/// Position and text of a query or token, in a tooltip.
void place_line(const Run& run, const char* name, Index position) {
  figure(name, fmt::format("{}  {}", position, token_text(run.labels(), position, 40)));
}

void draw_strip_tip(const StripTip& tip, const StripHit& hit) {
  ImGui::BeginTooltip();
  // Where rows were passed over, the number is that of the row before.
  const Index cell = hit.cell - hit.cell % hit.covers;
  place_line(tip.run, hit.of_rows ? "query" : "token",
             cell + (hit.of_rows ? tip.run.shape().first_query() : 0));
  dim_text((hit.of_rows ? tip.content.row_strip : tip.content.column_strip)->name);
  if (hit.value)
    figure((hit.of_rows ? tip.content.quantity : tip.metric).c_str(),
           number_text(static_cast<double>(*hit.value)));
  else
    dim_text(tip.pending ? "not computed yet" : "no value");
  if (hit.covers > 1) dim_text(fmt::format("every {}th query; zoom in for the others", hit.covers));
  ImGui::EndTooltip();
}

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
  void keep(SessionFields& fields) override;

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
                        "Single queries need the dump, which is not at hand: " + run.why_no_dump());
  if (run.shape().T_q < 1) return hint("The dump holds no queries.");
  {
    const HiddenDraw controls(context.figure);
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
  const StaleOverlay veil(context.veiled);
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

/// A clicked cell is already in view, so the map does not scroll to it.
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

void TokenMapPanel::keep(SessionFields& fields) {
  controls_.keep(fields);
  fields.part("map", map_);
}

}  // namespace

template <>
std::unique_ptr<Panel> make_panel<PanelKind::tokens>() {
  return std::make_unique<TokenMapPanel>();
}

}  // namespace kvreplay::viewer
