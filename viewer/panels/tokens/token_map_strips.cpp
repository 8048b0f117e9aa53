#include "viewer/panels/tokens/token_map_strips.hpp"

#include "viewer/model/token_text.hpp"
#include "viewer/panels/questions.hpp"
#include "viewer/widgets/controls.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

namespace kvreplay::viewer {
namespace {

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

}  // namespace

std::shared_ptr<const Run> subtracted_entries(PanelContext& context) {
  std::shared_ptr<const Run> run = context.state.subtracted();
  return run && run->dump() != nullptr ? run : nullptr;
}

void add_strips(const EntryStrips& asked, HeatmapContent& content) {
  PanelContext& context = asked.context;
  const EntryView& view = asked.view;
  const bool log = content.scale == ScaleKind::log;
  const std::shared_ptr<const Run> subtracted = subtracted_entries(context);
  content.row_strip =
      Strip{row_adds_up(view) && !subtracted ? "sum over the row's tokens" : "largest magnitude of the row",
            [asked](Index begin, Index end, double cells_per_pixel) {
              return row_strip(asked, begin, end, cells_per_pixel);
            },
            log};
  const std::optional<TokenMetric> metric = kEntries[view.shown].metric;
  if (!metric) return;
  // Its place is there from the start: the map must not jump when the sums arrive.
  content.column_strip = Strip{"sum over the window's rows", {}, true};
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
  if (hit.covers > 1) dim_text(fmt::format("every {}th row; zoom in for the others", hit.covers));
  ImGui::EndTooltip();
}

}  // namespace kvreplay::viewer
