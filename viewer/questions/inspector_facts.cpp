#include "viewer/questions/inspector_facts.hpp"

#include "analysis/options/option.hpp"
#include "analysis/results/agreement.hpp"
#include "sim/channels/channel_basis.hpp"
#include "sim/tokens/token_metrics.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/questions/csv_table.hpp"
#include "viewer/questions/entry_tiles.hpp"
#include "viewer/questions/exact_head.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace kvreplay::viewer {

std::optional<std::string> why_no_cell(const DumpShape& shape, const Cell& cell) {
  const auto beyond = [](Index index, Index count) { return index < 0 || index >= count; };
  if (beyond(cell.layer, shape.layers)) return fmt::format("no layer {}", cell.layer);
  if (beyond(cell.kv_head, shape.n_kv)) return fmt::format("no KV head {}", cell.kv_head);
  if (cell.query_head && beyond(*cell.query_head, shape.group()))
    return fmt::format("no query head {}", *cell.query_head);
  if (beyond(cell.token, shape.T)) return fmt::format("no token {}", cell.token);
  if (beyond(cell.row, shape.T)) return fmt::format("no query {}", cell.row);
  if (cell.row < shape.first_query()) return fmt::format("no query at {}", cell.row);
  return std::nullopt;
}

CellEntries cell_entries(const HeadGroup<double>& group, const Cell& cell, JobControl& job) {
  CellEntries entries;
  entries.hidden = cell.token < group.first_visible(cell.row) || cell.token >= group.end_visible(cell.row);
  if (entries.hidden) {
    entries.values.fill(std::numeric_limits<double>::quiet_NaN());
    return entries;
  }
  for (const EntryTerm entry : kEntries.all()) {
    job.check();
    EntryView view;
    view.layer = cell.layer;
    view.kv_head = cell.kv_head;
    view.query_head = cell.query_head;
    view.shown = entry;
    entries.values[static_cast<std::size_t>(entry)] = entry_exact(group, view, cell.row, cell.token);
  }
  return entries;
}

double channel_interaction(const HeadGroup<double>& group, ChannelPair channels, Index recent, Index window) {
  const Index keys = std::max<Index>(group.l - std::max<Index>(recent, 0), 0);
  const double key_product =
      group.k.col(channels.first).head(keys).dot(group.k.col(channels.second).head(keys));
  const RowRange rows = window_rows(group.l, group.first_query(), window);
  if (rows.count() == 0) return 0;
  double query_product = 0;
  for (const HeadMatrix<double>& q : group.q) {
    const auto seen = q.middleRows(rows.begin - group.first_query(), rows.count());
    query_product += seen.col(channels.first).dot(seen.col(channels.second));
  }
  return key_product * query_product;
}

namespace {

/// True if `a` at position p ranks before `b` at position q.
bool before(double a, Index p, double b, Index q) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) == std::isnan(b) ? p < q : std::isnan(b);
  return a == b ? p < q : a > b;
}

std::span<const double> values_of(const TokenMetrics& tokens, TokenMetric metric) {
  return {tokens[metric].data(), static_cast<std::size_t>(tokens[metric].size())};
}

/// Denominator of a share; NaN if shares are meaningless.
double whole(std::span<const double> values, double sum) {
  const bool negative = std::any_of(values.begin(), values.end(), [](double v) { return !(v >= 0); });
  return negative || sum <= 0 ? kNone : sum;
}

}  // namespace

Index rank_of(std::span<const double> values, Index position) {
  const double value = values[position];
  Index rank = 1;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (before(values[i], static_cast<Index>(i), value, position)) ++rank;
  return rank;
}

std::vector<Index> largest_of(std::span<const double> values, std::span<const Index> positions,
                              std::size_t most) {
  std::vector<Index> found;
  const auto value = [&](Index p) { return values[p]; };
  for (const Index p : positions)
    if (p >= 0 && p < std::ssize(values) && !std::isnan(value(p))) found.push_back(p);
  const auto end = found.begin() + static_cast<std::ptrdiff_t>(std::min(most, found.size()));
  std::partial_sort(found.begin(), end, found.end(),
                    [&](Index p, Index q) { return before(value(p), p, value(q), q); });
  found.erase(end, found.end());
  return found;
}

std::vector<TokenFigure> figures_of_token(const HeadSummary& summary, Index token) {
  std::vector<TokenFigure> figures;
  if (!summary.tokens || token < 0 || token >= summary.l) return figures;
  for (const TokenMetric metric : kTokenMetrics.all()) {
    if (!summary.metrics.contains(metric)) continue;
    const std::span<const double> values = values_of(*summary.tokens, metric);
    const double value = values[token];
    figures.push_back({metric, value, rank_of(values, token),
                       value / whole(values, summary.sums[static_cast<std::size_t>(metric)])});
  }
  return figures;
}

std::vector<SelectionFigure> figures_of_tokens(const HeadSummary& summary, std::span<const Index> tokens) {
  std::vector<SelectionFigure> figures;
  if (!summary.tokens) return figures;
  for (const TokenMetric metric : kTokenMetrics.all()) {
    if (!summary.metrics.contains(metric)) continue;
    const std::span<const double> values = values_of(*summary.tokens, metric);
    std::vector<double> chosen;
    for (const Index token : tokens)
      if (token >= 0 && token < summary.l) chosen.push_back(values[token]);
    const double sum = compensated_sum(chosen);
    figures.push_back({metric, sum, sum / whole(values, summary.sums[static_cast<std::size_t>(metric)])});
  }
  return figures;
}

namespace {

constexpr std::size_t kCellsKept = 256, kLargestShown = 10;
constexpr Index kMostPins = 64;

}  // namespace

double InspectorFacts::value(TokenMetric metric, Index position) const {
  if (!summary || !summary->tokens || !summary->metrics.contains(metric) || position < 0 ||
      position >= summary->l)
    return std::numeric_limits<double>::quiet_NaN();
  return (*summary->tokens)[metric](0, position);
}

void InspectorFacts::ask_cell(PanelContext& context, const std::shared_ptr<const Run>& from, Column& column) {
  const Cell& cell = column.cell;
  if (const auto why = why_no_cell(from->shape(), cell)) {
    column.why = *why;
    return;
  }
  if (from->dump() == nullptr) {
    column.why = fmt::format("no dump: {}", from->why_no_dump());
    return;
  }
  const JobRequest request{
      .key = {from->key(), "cell", cell.layer, cell.kv_head, cell.query_head, cell.row, cell.token},
      .title = fmt::format("Query {}, token {} of {}", cell.row, cell.token,
                           from->head_text(cell.layer, cell.kv_head))};
  if (const auto known = cells_.find(request.key); known != cells_.end()) {
    column.entries = known->second;
    return;
  }
  const auto answer = ask_of_exact_head(
      context.queue, from, cell.layer, cell.kv_head, request,
      [cell](const HeadGroup<double>& group, JobControl& job) { return cell_entries(group, cell, job); });
  column.why = answer.error;
  pending |= answer.pending;
  column.entries = answer.value;
  if (!answer) return;
  if (cells_.size() >= kCellsKept) cells_.clear();
  cells_[request.key] = answer.value;
}

void InspectorFacts::add_cells(PanelContext& context, const Cell& cell, std::optional<std::size_t> pin) {
  for (const std::shared_ptr<const Run>& from : context.state.runs) {
    Column column;
    column.run = from->name();
    column.cell = cell;
    column.pin = pin;
    const ModelLayer number = context.state.run()->layer_number(cell.layer);
    if (!pin) column.cell.layer = from->layers().layer(number).value_or(-1);
    column.layer_number = column.cell.layer < 0 ? number : from->layer_number(column.cell.layer);
    if (column.cell.layer < 0)
      column.why = fmt::format("no layer {}", number);
    else
      ask_cell(context, from, column);
    columns.push_back(std::move(column));
  }
}

void InspectorFacts::ask_interaction(PanelContext& context) {
  interaction.reset();
  const std::shared_ptr<const Run>& from = context.state.run();
  if (!selection.channels || from->dump() == nullptr) return;
  recent = default_recent(Semantics::paper);
  const auto [first, second] = *selection.channels;
  const auto answer = ask_of_exact_head(
      context.queue, from, selection.layer, selection.kv_head,
      {.key = {from->key(), "pair", selection.layer, selection.kv_head, first, second, comparison.window},
       .title = fmt::format("Channels {} and {}", first, second)},
      [pair = *selection.channels, skip = recent, window = comparison.window](const HeadGroup<double>& group,
                                                                              JobControl&) {
        return channel_interaction(group, pair, skip, window);
      });
  pending |= answer.pending;
  if (answer) interaction = *answer;
}

void InspectorFacts::ask_tokens(PanelContext& context) {
  if (!selection.token && selection.tokens.empty()) {
    summary.reset();
  } else {
    const auto answer = ask_summary(context, selection.layer, selection.kv_head, Urgency::soon);
    pending |= answer.pending;
    if (!answer.error.empty()) errors.push_back(answer.error);
    summary = answer.value;
  }
  const Key now(selection.token, comparison.score);
  if (summary == counted_of_ && now == counted_ && selection.tokens == counted_tokens_) return;
  counted_of_ = summary;
  counted_ = now;
  counted_tokens_ = selection.tokens;
  token.clear();
  tokens.clear();
  largest.clear();
  if (!summary) return;
  if (selection.token) token = figures_of_token(*summary, *selection.token);
  if (selection.tokens.empty()) return;
  tokens = figures_of_tokens(*summary, selection.tokens);
  if (!summary->tokens || !summary->metrics.contains(comparison.score)) return;
  const Matrix<double>& score = (*summary->tokens)[comparison.score];
  largest =
      largest_of({score.data(), static_cast<std::size_t>(score.size())}, selection.tokens, kLargestShown);
}

void InspectorFacts::ask_kept(PanelContext& context) {
  kept.clear();
  if (!selection.token || context.state.run()->dump() == nullptr) return;
  const std::array<WhatIfSettings, 2> settings = context.state.settings();
  for (std::size_t s = 0; s < settings.size(); ++s) {
    const auto answer =
        ask_kept_set(context, settings[s], selection.layer, selection.kv_head, Urgency::background, {});
    Kept one{s == 0 ? 'A' : 'B', settings[s].policy()};
    if (answer && !answer.stale && *selection.token < std::ssize(answer->kept))
      one.kept = answer->kept[*selection.token] != 0;
    if (one.kept || answer.pending) kept.push_back(std::move(one));
  }
}

void InspectorFacts::gather(PanelContext& context) {
  AppState& state = context.state;
  run = state.run()->name();
  several_runs = state.runs.size() > 1;
  selection = state.selection();
  comparison = state.comparison;
  columns.clear();
  errors.clear();
  pending = false;
  if (selection.row && selection.token)
    add_cells(context,
              {selection.layer, selection.kv_head, selection.query_head, *selection.row, *selection.token},
              {});
  for (std::size_t i = 0; i < state.pins.size() && i < kMostPins; ++i) add_cells(context, state.pins[i], i);
  ask_tokens(context);
  card.ask(context);
  pending |= card.pending;
  errors.insert(errors.end(), card.errors.begin(), card.errors.end());
  ask_interaction(context);
  ask_kept(context);
}

std::string InspectorFacts::csv(const Run& of) const {
  constexpr std::optional<Index> kNo;  // an empty field
  CsvTable table("kind,run,layer,kv_head,query_head,row,token,quantity,value,rank,candidates,share,text");
  const auto label = [&](Index position) {
    const std::optional<TokenLabels>& labels = of.labels();
    const auto at = static_cast<std::size_t>(position);
    return labels && at < labels->text.size() ? labels->text[at] : std::string();
  };
  for (const Column& column : columns) {
    if (!column.entries) continue;
    const Cell& cell = column.cell;
    for (const EntryTerm entry : kEntries.all())
      table.row(column.pin ? "pinned entry" : "entry", column.run, cell.layer, cell.kv_head, cell.query_head,
                cell.row, cell.token, name_of(entry), if_any((*column.entries)[entry]), kNo, kNo, kNo, kNo);
  }
  // A line about the selected head's sums: neither a query head nor a row.
  const auto add = [&](std::string_view kind, std::optional<Index> position, std::string_view quantity,
                       double value, std::optional<Index> rank, std::optional<Index> candidates,
                       std::optional<double> share, std::string_view text) {
    table.row(kind, run, selection.layer, selection.kv_head, kNo, kNo, position, quantity, if_any(value),
              rank, candidates, share, text);
  };
  for (const TokenFigure& figure : token)
    add("token", selection.token, name_of(figure.metric), figure.value, figure.rank, summary->l,
        if_any(figure.share), label(*selection.token));
  for (const TokenCard::Line& line : card.lines())
    table.row(line.kind, run, selection.layer, selection.kv_head, selection.query_head, line.row, line.token,
              line.quantity, if_any(line.value), kNo, kNo, line.share, line.token ? label(*line.token) : "");
  for (const SelectionFigure& figure : tokens)
    add(counted(std::ssize(selection.tokens), "token"), kNo, name_of(figure.metric), figure.sum, kNo,
        summary->l, if_any(figure.share), "");
  for (std::size_t i = 0; i < largest.size(); ++i)
    for (const TokenMetric metric : {comparison.score, comparison.reference})
      add("largest", largest[i], name_of(metric), value(metric, largest[i]), static_cast<Index>(i) + 1, kNo,
          std::nullopt, label(largest[i]));
  for (const Kept& one : kept)
    if (one.kept)
      add(fmt::format("kept by {}", one.setting), selection.token, one.policy, *one.kept ? 1 : 0, kNo, kNo,
          std::nullopt, "");
  if (interaction)
    add("channels", kNo, fmt::format("H of {} and {}", selection.channels->first, selection.channels->second),
        *interaction, kNo, kNo, std::nullopt, "");
  return table.text();
}

}  // namespace kvreplay::viewer
