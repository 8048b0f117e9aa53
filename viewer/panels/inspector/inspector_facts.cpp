#include "viewer/panels/inspector/inspector_facts.hpp"

#include "analysis/options/option.hpp"
#include "sim/channels/channel_basis.hpp"
#include "viewer/panels/questions.hpp"
#include "viewer/work/csv_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace kvreplay::viewer {
namespace {

constexpr std::size_t kCellsKept = 256, kLargestShown = 10;
constexpr Index kMostPins = 64;

/// A head in float64, kept for the next cell of it.
Answer<ExactHead> ask_exact_head(Desk& desk, const std::shared_ptr<const Run>& run, Index layer, Index head) {
  const Question question{.key = {run->key(), "float64", layer, head},
                          .title = fmt::format("Reading layer {} head {} in float64", layer, head)};
  return desk.ask<ExactHead>(question, [run, layer, head](JobControl&) {
    return ExactHead{
        std::make_shared<const HeadGroup<double>>(load_head_group<double>(*run->dump(), layer, head))};
  });
}

/// Whether a head in float64 is small enough to be kept.
bool fits(const Desk& desk, const Run& run) {
  return head_group_bytes(run.shape(), run.shape().d_model > 0, sizeof(double)) <= desk.cache_limit() / 4;
}

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
  const Question question{
      .key = {from->key(), "cell", cell.layer, cell.kv_head, cell.query_head, cell.row, cell.token},
      .title = fmt::format("Row {}, token {} of layer {} head {}", cell.row, cell.token, cell.layer,
                           cell.kv_head)};
  if (const auto known = cells_.find(question.key); known != cells_.end()) {
    column.entries = known->second;
    return;
  }
  Answer<CellEntries> answer;
  if (fits(context.desk, *from)) {
    const Answer<ExactHead> head = ask_exact_head(context.desk, from, cell.layer, cell.kv_head);
    column.why = head.error;
    pending |= head.pending;
    if (!head) return;
    answer = context.desk.ask<CellEntries>(
        question, [group = head->group, cell](JobControl& job) { return cell_entries(*group, cell, job); });
  } else {
    answer = context.desk.ask<CellEntries>(question, [from, cell](JobControl& job) {
      return cell_entries(load_head_group<double>(*from->dump(), cell.layer, cell.kv_head), cell, job);
    });
  }
  column.why = answer.error;
  pending |= answer.pending;
  column.entries = answer.value;
  if (!answer) return;
  if (cells_.size() >= kCellsKept) cells_.clear();
  cells_[question.key] = answer.value;
}

void InspectorFacts::add_cells(PanelContext& context, const Cell& cell, std::optional<std::size_t> pin) {
  for (const std::shared_ptr<const Run>& from : context.state.runs) {
    Column column;
    column.run = from->name();
    column.cell = cell;
    column.pin = pin;
    ask_cell(context, from, column);
    columns.push_back(std::move(column));
  }
}

void InspectorFacts::ask_interaction(PanelContext& context) {
  interaction.reset();
  const std::shared_ptr<const Run>& from = context.state.run();
  if (!selection.channels || from->dump() == nullptr || !fits(context.desk, *from)) return;
  const Answer<ExactHead> head = ask_exact_head(context.desk, from, selection.layer, selection.kv_head);
  pending |= head.pending;
  if (!head) return;
  recent = default_recent(Semantics::paper);
  const auto [first, second] = *selection.channels;
  const Question question{
      .key = {from->key(), "pair", selection.layer, selection.kv_head, first, second, comparison.window},
      .title = fmt::format("Channels {} and {}", first, second)};
  const auto answer = context.desk.ask<double>(
      question, [group = head->group, pair = *selection.channels, skip = recent, window = comparison.window](
                    JobControl&) { return channel_interaction(*group, pair, skip, window); });
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
    if (answer && !answer.stale && *selection.token < std::ssize(answer->kept))
      kept.push_back({s == 0 ? 'A' : 'B', settings[s].policy(), answer->kept[*selection.token] != 0});
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
  for (std::size_t i = 0; i < state.pins.size() && i < kMostPins; ++i) {
    const Pin& pin = state.pins[i];
    add_cells(context, {pin.layer, pin.kv_head, pin.query_head, pin.row, pin.token}, i);
  }
  ask_tokens(context);
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
  // Of the selected head's sums: neither a query head nor a row.
  const auto add = [&](std::string_view kind, std::optional<Index> position, std::string_view quantity,
                       double value, std::optional<Index> rank, std::optional<Index> candidates,
                       std::optional<double> share, std::string_view text) {
    table.row(kind, run, selection.layer, selection.kv_head, kNo, kNo, position, quantity, if_any(value),
              rank, candidates, share, text);
  };
  for (const TokenFigure& figure : token)
    add("token", selection.token, name_of(figure.metric), figure.value, figure.rank, summary->l,
        if_any(figure.share), label(*selection.token));
  for (const SelectionFigure& figure : tokens)
    add(counted(std::ssize(selection.tokens), "token"), kNo, name_of(figure.metric), figure.sum, kNo,
        summary->l, if_any(figure.share), "");
  for (std::size_t i = 0; i < largest.size(); ++i)
    for (const TokenMetric metric : {comparison.score, comparison.reference})
      add("largest", largest[i], name_of(metric), value(metric, largest[i]), static_cast<Index>(i) + 1, kNo,
          std::nullopt, label(largest[i]));
  for (const Kept& one : kept)
    add(fmt::format("kept by {}", one.setting), selection.token, one.policy, one.kept ? 1 : 0, kNo, kNo,
        std::nullopt, "");
  if (interaction)
    add("channels", kNo, fmt::format("H of {} and {}", selection.channels->first, selection.channels->second),
        *interaction, kNo, kNo, std::nullopt, "");
  return table.text();
}

}  // namespace kvreplay::viewer
