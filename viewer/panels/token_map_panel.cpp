#include "data/error.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/model/token_text.hpp"
#include "viewer/panels/entry_question.hpp"
#include "viewer/panels/make_panels.hpp"
#include "viewer/panels/questions.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay::viewer {
namespace {

constexpr std::array<std::string_view, 3> kAgainst = {"as it is", "difference to", "relative to"};
constexpr std::size_t kLongestTokenText = 14;
/// Cells of an export.
constexpr Index kMostCells = 4'000'000;

std::vector<std::string_view> entry_names() {
  std::vector<std::string_view> names;
  for (const Entry entry : all_entries()) names.push_back(name_of(entry));
  return names;
}

const char* meaning_of(Entry entry) {
  switch (entry) {
    case Entry::logit:
      return "z: the logit, scaled and capped as the layer does";
    case Entry::attn:
      return "a: the attention weight";
    case Entry::attn_sq:
      return "a\xC2\xB2";
    case Entry::value:
      return "a\xC2\xB2 \xE2\x80\x96v\xE2\x80\x96\xC2\xB2 (OBCache eq. 4)";
    case Entry::key:
      return "(a z)\xC2\xB2 \xE2\x80\x96v \xE2\x88\x92 o\xE2\x80\x96\xC2\xB2 (OBCache eq. 5)";
    case Entry::joint:
      return "a\xC2\xB2 \xE2\x80\x96v + z (v \xE2\x88\x92 o)\xE2\x80\x96\xC2\xB2 (OBCache eq. 6)";
    case Entry::exact_value:
      return "exact squared change of the output when v := 0";
    case Entry::exact_key:
      return "exact squared change of the output when k := 0";
    case Entry::exact_joint:
      return "exact squared change of the output when k := 0 and v := 0";
    case Entry::exact_remove:
      return "exact squared change of the output when the token leaves the cache";
  }
  return "";
}

std::string unit_of(const EntryView& view) {
  if (view.against == EntryView::Against::relative) return "";
  switch (view.shown) {
    case Entry::logit:
      return "logit";
    case Entry::attn:
      return "weight";
    case Entry::attn_sq:
      return "squared weight";
    default:
      return "squared output";
  }
}

/// Rows x tokens of the selected head.
class TokenMapPanel final : public Panel {
 public:
  PanelKind kind() const override { return PanelKind::tokens; }
  void draw(PanelContext& context) override;
  HeatmapView* heatmap() override { return &map_; }
  std::string csv(PanelContext& context) const override;
  nlohmann::json save() const override;
  void load(const nlohmann::json& json) override;

 private:
  EntryView view_of(const Selection& selection) const;
  void draw_controls(PanelContext& context);
  HeatmapContent content(PanelContext& context, const EntryView& view);
  void add_strips(PanelContext& context, const EntryView& view, HeatmapContent& content);
  void fade_evicted(PanelContext& context, HeatmapContent& content) const;
  void react(PanelContext& context, const HeatmapHit& hit);
  static void tooltip(const Run& run, const HeatmapHit& hit, const std::string& quantity);

  Entry shown_ = Entry::exact_remove, other_ = Entry::attn;
  EntryView::Against against_ = EntryView::Against::nothing;
  HeatmapView map_;
  EntryQuestions entries_;
  std::optional<Index> followed_token_, followed_row_;
  std::string error_;
  bool pending_ = false;
};

EntryView TokenMapPanel::view_of(const Selection& selection) const {
  return {selection.layer, selection.kv_head, selection.query_head, shown_, against_, other_};
}

void TokenMapPanel::draw(PanelContext& context) {
  const Run& run = *context.state.run();
  if (run.dump() == nullptr)
    return hint("Single rows need the dump, which is not at hand: " + run.why_no_dump());
  if (run.shape().T_q < 1) return hint("The dump holds no queries.");
  draw_controls(context);
  const EntryView view = view_of(context.state.selection());
  error_.clear();
  pending_ = false;
  const Selection& selected = context.state.selection();
  if (selected.token != followed_token_ || selected.row != followed_row_) {
    followed_token_ = selected.token;
    followed_row_ = selected.row;
    if (selected.token && selected.row) map_.show(*selected.row - run.shape().first_query(), *selected.token);
  }
  const HeatmapContent shown = content(context, view);
  const HeatmapHit hit = map_.draw("tokens", ImGui::GetContentRegionAvail(), shown, context.state.links);
  if (hit.hovered) tooltip(run, hit, shown.quantity);
  react(context, hit);
}

void TokenMapPanel::draw_controls(PanelContext& context) {
  static const std::vector<std::string_view> names = entry_names();
  auto shown = static_cast<std::size_t>(shown_), against = static_cast<std::size_t>(against_),
       other = static_cast<std::size_t>(other_);
  if (choose("##shown", names, shown, 132)) shown_ = all_entries()[shown];
  tip(meaning_of(shown_));
  ImGui::SameLine();
  if (choose("##against", kAgainst, against, 104)) against_ = static_cast<EntryView::Against>(against);
  if (against_ != EntryView::Against::nothing) {
    ImGui::SameLine();
    if (choose("##other", names, other, 132)) other_ = all_entries()[other];
    tip(meaning_of(other_));
  }
  ImGui::SameLine();
  ImGui::Checkbox("fade what is evicted", &context.state.show_kept);
  tip("Fades the tokens that the setting of the What if panel evicts from this head");
  if (pending_) busy_mark();
  if (!error_.empty()) error_line(error_);
}

HeatmapContent TokenMapPanel::content(PanelContext& context, const EntryView& view) {
  const std::shared_ptr<const Run>& run = context.state.run();
  const DumpShape& shape = run->shape();
  const Selection& selected = context.state.selection();
  HeatmapContent c;
  c.key = EntryQuestions::key_of(*run, view);
  c.size = {shape.T_q, shape.T};
  c.tile = [this, &context, view](const TileKey& key) {
    Answer<Tile> answer = entries_.tile(context, view, key);
    if (!answer.error.empty()) error_ = answer.error;
    pending_ |= answer.pending;
    return answer;
  };
  c.quantity = std::string(name_of(shown_));
  if (against_ == EntryView::Against::difference)
    c.quantity += fmt::format(" \xE2\x88\x92 {}", name_of(other_));
  if (against_ == EntryView::Against::relative)
    c.quantity = fmt::format("({} \xE2\x88\x92 {}) / {}", name_of(shown_), name_of(other_), name_of(other_));
  c.unit = unit_of(view);
  c.is_signed = against_ != EntryView::Against::nothing || shown_ == Entry::logit;
  c.scale = against_ != EntryView::Against::nothing ? ScaleKind::symlog
            : shown_ == Entry::logit                ? ScaleKind::linear
                                                    : ScaleKind::log;
  c.range.kind = RangeKind::percentiles;
  c.range.low_percent = c.is_signed ? 0.5 : 20;
  c.range.high_percent = c.is_signed ? 99.5 : 100;
  c.row_name = "query";
  c.column_name = "token";
  c.first_row = shape.first_query();
  c.link = run->key() + "tokens";
  if (run->labels())
    c.column_text = [&labels = run->labels()](Index column) {
      return token_text(labels, column, kLongestTokenText);
    };
  c.selected_columns = selected.tokens;
  if (selected.row) c.row = *selected.row - shape.first_query();
  c.column = selected.token;
  if (context.state.hover.row) c.hover_row = *context.state.hover.row - shape.first_query();
  c.hover_column = context.state.hover.token;
  add_strips(context, view, c);
  fade_evicted(context, c);
  return c;
}

/// Above the tokens: what the rows of the window add up to.
void TokenMapPanel::add_strips(PanelContext& context, const EntryView& view, HeatmapContent& content) {
  const std::optional<TokenMetric> metric = metric_of(view.shown);
  if (!metric) return;
  // Its place is there from the start: the map must not jump when the sums arrive.
  content.column_strips.push_back(
      {fmt::format("{}, summed over the window", name_of(*metric)), nullptr, true});
  const Answer<HeadSummary> summary = ask_summary(context, view.layer, view.kv_head, Urgency::soon);
  pending_ |= summary.pending;
  if (!summary || !summary->tokens) return;
  const Matrix<double>& sums = (*summary->tokens)[*metric];
  if (sums.size() == 0) return;
  auto values = std::make_shared<std::vector<float>>(static_cast<std::size_t>(context.state.run()->shape().T),
                                                     std::numeric_limits<float>::quiet_NaN());
  for (Index p = 0; p < sums.cols(); ++p)
    (*values)[static_cast<std::size_t>(p)] = static_cast<float>(sums(0, p));
  content.column_strips.back().values = std::move(values);
}

void TokenMapPanel::fade_evicted(PanelContext& context, HeatmapContent& content) const {
  if (!context.state.show_kept) return;
  const Selection& selected = context.state.selection();
  const Answer<WhatIf> answer =
      ask_what_if(context, context.state.setting(), selected.layer, selected.kv_head, Urgency::soon,
                  context.state.run()->key() + "token-map/kept");
  if (!answer) return;
  content.faded_columns.assign(static_cast<std::size_t>(content.size.columns), 0);
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
  if (!hit.hovered) return;
  context.state.next_hover.row = hit.row + first;
  context.state.next_hover.token = hit.column;
  if (hit.clicked) {
    context.state.select_cell(hit.row + first, hit.column);
    followed_row_ = hit.row + first;
    followed_token_ = hit.column;
  }
}

void TokenMapPanel::tooltip(const Run& run, const HeatmapHit& hit, const std::string& quantity) {
  const Index row = hit.row + run.shape().first_query();
  ImGui::BeginTooltip();
  const auto place = [&](const char* name, Index position) {
    dim_text(name);
    ImGui::SameLine();
    ImGui::PushFont(mono_font());
    ImGui::Text("%lld  %s", static_cast<long long>(position), token_text(run.labels(), position, 40).c_str());
    ImGui::PopFont();
  };
  place("query", row);
  place("token", hit.column);
  if (!hit.value)
    dim_text("not computed yet");
  else if (std::isnan(*hit.value))
    dim_text("hidden from this query");
  else
    figure(hit.single_cell ? quantity.c_str() : fmt::format("{}, largest here", quantity).c_str(),
           number_text(static_cast<double>(*hit.value)));
  ImGui::EndTooltip();
}

std::string TokenMapPanel::csv(PanelContext& context) const {
  const DumpShape& shape = context.state.run()->shape();
  std::string text = fmt::format("query,token,cells_a_side,{}\n", name_of(shown_));
  int level = 0;
  for (const auto& [key, tile] : map_.tiles()) level = std::max(level, key.level);
  if (const auto camera = map_.camera()) level = drawn_level(*camera, {shape.T_q, shape.T});
  Index cells = 0;
  for (const auto& [key, tile] : map_.tiles()) {
    if (key.level != level) continue;
    for (Index r = 0; r < tile->rows; ++r)
      for (Index c = 0; c < tile->columns && cells < kMostCells; ++c) {
        const float v = tile->values[static_cast<std::size_t>(r * tile->columns + c)];
        if (std::isnan(v)) continue;
        text += fmt::format("{},{},{},{}\n", shape.first_query() + ((key.row * kTileSize + r) << level),
                            (key.column * kTileSize + c) << level, Index{1} << level, v);
        ++cells;
      }
  }
  return cells == 0 ? std::string() : text;
}

nlohmann::json TokenMapPanel::save() const {
  return {{"shown", name_of(shown_)},
          {"against", static_cast<int>(against_)},
          {"other", name_of(other_)},
          {"map", map_.save()}};
}

void TokenMapPanel::load(const nlohmann::json& json) {
  if (!json.is_object()) return;
  const auto entry = [&](const char* key, Entry& into) {
    const auto found = json.find(key);
    if (found != json.end() && found->is_string())
      if (const auto named = entry_named(found->get<std::string>())) into = *named;
  };
  entry("shown", shown_);
  entry("other", other_);
  const auto against = json.find("against");
  if (against != json.end() && against->is_number_integer() && *against >= 0 && *against <= 2)
    against_ = static_cast<EntryView::Against>(against->get<int>());
  if (json.contains("map")) map_.load(json["map"]);
}

}  // namespace

std::unique_ptr<Panel> make_token_map_panel() { return std::make_unique<TokenMapPanel>(); }

}  // namespace kvreplay::viewer
