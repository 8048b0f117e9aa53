#include "analysis/eviction/eviction_tables.hpp"

#include "analysis/results/agreement.hpp"
#include "analysis/results/comparisons.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/map_name.hpp"
#include "analysis/results/over_dumps.hpp"
#include "data/npy_write.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

namespace kvreplay {

namespace {

using C = EvictionColumns;

std::string_view name_of_ties(Index numbers) {
  return numbers == 0 ? "as_scored" : name_of(kTiesIn[numbers]);
}

/// Relative errors over the steps that have a value; nan where none has.
struct Steps {
  double mean, max;
};
Steps over_steps(const Eigen::Ref<const Eigen::RowVectorXd>& steps) {
  if (!steps.hasNaN()) return {steps.mean(), steps.maxCoeff()};
  std::vector<double> values(steps.begin(), steps.end());
  std::erase_if(values, [](double value) { return std::isnan(value); });
  if (values.empty()) return {kNan, kNan};
  return {compensated_sum(values) / static_cast<double>(values.size()), *std::ranges::max_element(values)};
}

}  // namespace

EvictionTable::EvictionTable(const EvictionPlan& plan, const EvictionColumns& columns,
                             const HeadFigures& figures, bool with_layer_output)
    : MeasuredTable(plan, columns, figures, with_layer_output), metrics_(computed()) {}

MetricTable EvictionTable::computed() const {
  MetricTable table = table_of(Table::evictions, plan_.l);
  for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
    const EvictionCase& which = plan_.cases[c];
    table.add_case(
        kEvictionFigures, {which.policy, which.semantics, which.phase.name(), which.budget_label},
        which.file_name(), table.at_scopes([&](Scope scope) { return kept(c, scope); }),
        [&](Scope scope, EvictionFigure metric, RowSet rows) { return value(c, scope, metric, rows); });
  }
  return table;
}

std::optional<double> EvictionTable::of_model(std::size_t which, EvictionFigure metric, RowSet rows) const {
  const MetricEntry* const found = entry(which, metric, rows);
  return found != nullptr && has_row(found->model) ? std::optional(found->model) : std::nullopt;
}

std::optional<double> EvictionTable::excess(std::size_t which, Scope scope, RowSet rows,
                                            EvictionBase reference) const {
  const EvictionCase& mine = plan_.cases[which];
  if (mine.phase.decodes() || !mine.kept || plan_.reads(mine) != nullptr) return std::nullopt;
  for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
    const EvictionCase& other = plan_.cases[c];
    if (!other.run || other.phase.kind != Phase::Kind::prefill || other.kept != mine.kept) continue;
    const EvictionRule& rule = plan_.runs[*other.run].rules[other.budget];
    const Policy& policy = rule.policy;
    if (policy.base != reference || policy.metric || policy.given || policy.start) continue;
    if (rule.by != SearchBy::error) continue;
    return output_error(which, scope, rows) - output_error(c, scope, rows);
  }
  return std::nullopt;
}

std::optional<double> EvictionTable::value(std::size_t which, Scope scope, EvictionFigure figure,
                                           RowSet rows) const {
  const FigureFacts& facts = facts_of(figure);
  if (!facts.rows.has(rows) || !facts.levels.has(level_of(scope))) return std::nullopt;
  const RowRange measured = rows == RowSet::window ? plan_.window : plan_.future;
  if (rows != RowSet::none && measured.count() == 0) return std::nullopt;
  if (figure == EvictionFigure::bytes_read) {
    const auto column = columns_.bytes_read_of(which);
    return column ? std::optional(sum(scope, *column)) : std::nullopt;
  }
  const bool of_evicted = figure == EvictionFigure::eviction_loss ||
                          figure == EvictionFigure::optimality_gap || figure == EvictionFigure::oracle_recall;
  if (of_evicted && plan_.reads(plan_.cases[which]) != nullptr) return std::nullopt;
  for (const auto& [stored, column] : kStoredFigures)
    if (stored == figure)
      return C::averages(column) ? scoped_.mean(scope, columns_.of(which, column))
                                 : sum(scope, columns_.of(which, column));
  if (figure == EvictionFigure::excess_over_greedy_exact)
    return excess(which, scope, rows, EvictionBase::greedy_exact);
  if (figure == EvictionFigure::excess_over_exchange)
    return excess(which, scope, rows, EvictionBase::exchange);
  if (rows == RowSet::window && plan_.cases[which].phase.decodes()) return std::nullopt;
  if (figure == EvictionFigure::output_error) return output_error(which, scope, rows);
  if (figure == EvictionFigure::residual_error) return residual_error(which, scope, rows);
  if (figure == EvictionFigure::layer_output_error) return layer_output_error(which, scope, rows);
  return loss(which, scope, name_of(figure), rows);
}

std::optional<double> EvictionTable::residual_error(std::size_t which, Scope scope, RowSet rows) const {
  if (!with_layer_output_ || !plan_.with_residual) return std::nullopt;
  const bool window = rows == RowSet::window;
  const Index change = columns_.of(which, window ? C::window_layer_change_sq : C::future_layer_change_sq),
              stream = columns_.of(window ? C::window_residual_sq : C::future_residual_sq);
  std::vector<double> layers;
  for (Index layer = 0; layer < std::ssize(figures_.layers); ++layer) {
    if (scope.layer && *scope.layer != layer) continue;
    const Scope first{layer, 0};  // every head carries its layer's figures
    layers.push_back(relative_error(sum(first, change), sum(first, stream)));
  }
  return compensated_sum(layers) / static_cast<double>(layers.size());
}

std::optional<double> EvictionTable::kept(std::size_t which, Scope scope) const {
  // Layers with a sliding window hold and keep fewer: the model's number is that of the other layers.
  if (!scope.layer && !plan_.of_windowed.empty())
    return plan_.cases[which].kept ? std::optional(static_cast<double>(*plan_.cases[which].kept))
                                   : std::nullopt;
  const auto tokens = scoped_.common(scope, columns_.of(which, C::tokens));
  // For caches of query heads the number is a mean, whose last bits may be inexact.
  if (!tokens || std::abs(*tokens - std::round(*tokens)) > 1e-9 * *tokens) return std::nullopt;
  return std::round(*tokens);
}

double EvictionTable::common(std::size_t pair, Scope scope) const {
  return sum(scope, columns_.common_of(pair));
}

double EvictionTable::shared(std::size_t pair) const {
  const double here = sum({}, columns_.of(plan_.pairs[pair].first, C::prompt_tokens));
  const double there = sum({}, columns_.of(plan_.pairs[pair].second, C::prompt_tokens));
  return relative_error(common(pair, {}), std::max(here, there));
}

double EvictionTable::share_of_bytes(std::size_t which) const {
  return sum({}, columns_.of(which, C::bytes)) / sum({}, columns_.of(C::prompt_bytes));
}

void EvictionTable::write_decoding(const ResultFolder& folder) const {
  const auto decodes = [](const EvictionCase& which) { return which.phase.decodes(); };
  if (std::ranges::none_of(plan_.cases, decodes)) return;
  const std::size_t shape[] = {figures_.layers.size(), static_cast<std::size_t>(figures_.n_kv),
                               static_cast<std::size_t>(columns_.steps())};
  MetricTable table = table_of(Table::decode);
  for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
    const EvictionCase& which = plan_.cases[c];
    if (!decodes(which)) continue;
    const auto add = [&](DecodeFigure metric, Index first, const auto& value_of) {
      table.add({which.decode_name(), which.semantics, which.budget_label, std::string(name_of(metric))},
                [&](Scope scope) -> std::optional<double> {
                  if (!scope.head) return std::nullopt;
                  return value_of(
                      figures_.values.row(scoped_.heads_in(scope).begin).segment(first, columns_.steps()));
                });
    };
    add(DecodeFigure::mean, columns_.steps_of(c), [](const auto& steps) { return over_steps(steps).mean; });
    add(DecodeFigure::max, columns_.steps_of(c), [](const auto& steps) { return over_steps(steps).max; });
    add(DecodeFigure::last, columns_.steps_of(c), [](const auto& steps) { return steps[steps.size() - 1]; });
    add(DecodeFigure::tokens, columns_.cached_of(c), [](const auto& tokens) { return tokens.mean(); });
    add(DecodeFigure::most_tokens, columns_.cached_of(c),
        [](const auto& tokens) { return tokens.maxCoeff(); });
  }
  table.write(folder);
  for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
    const EvictionCase& which = plan_.cases[c];
    if (!decodes(which)) continue;
    const auto write = [&](std::string_view kind, Index first) {
      const Matrix<double> steps = figures_.values.middleCols(first, columns_.steps());
      write_npy(folder.file(fmt::format("{}/{}-{}-{}.npy", kind, file_word(which.decode_name()),
                                        which.semantics, which.budget_label)),
                shape, std::span<const double>(steps.data(), static_cast<std::size_t>(steps.size())));
    };
    write("decode", columns_.steps_of(c));
    write("decode_tokens", columns_.cached_of(c));
  }
}

void EvictionTable::write_differences(const ResultFolder& folder) const {
  if (plan_.pairs.empty()) return;
  MetricTable table = table_of(Table::diff);
  for (std::size_t pair = 0; pair < plan_.pairs.size(); ++pair) {
    const std::size_t a = plan_.pairs[pair].first, b = plan_.pairs[pair].second;
    const EvictionCase& which = plan_.cases[a];
    const auto add = [&](DiffFigure metric, RowSet rows, const auto& value_of) {
      table.add({which.policy, which.phase.name(), which.budget_label, which.semantics,
                 plan_.cases[b].semantics, std::string(name_of(rows)), std::string(name_of(metric))},
                [&](Scope scope) { return std::optional<double>(value_of(scope)); });
    };
    const auto tokens = [&](std::size_t c) {
      return [this, c](Scope scope) { return sum(scope, columns_.of(c, C::prompt_tokens)); };
    };
    add(DiffFigure::kept, RowSet::none, tokens(a));
    add(DiffFigure::kept_by_other, RowSet::none, tokens(b));
    add(DiffFigure::kept_by_both, RowSet::none, [&](Scope scope) { return common(pair, scope); });
    for (const RowSet rows : {RowSet::window, RowSet::future}) {
      const auto error = [&](std::size_t c) {
        return [this, c, rows](Scope scope) { return value(c, scope, EvictionFigure::output_error, rows); };
      };
      if (!value(a, {}, EvictionFigure::output_error, rows)) continue;
      add(DiffFigure::output_error, rows, error(a));
      add(DiffFigure::output_error_of_other, rows, error(b));
    }
  }
  table.write(folder);
}

std::size_t EvictionTable::write(const ResultFolder& folder) const {
  const std::size_t rows = metrics_.write(folder);
  write_decoding(folder);
  write_differences(folder);
  return rows;
}

std::string EvictionTable::kept_text(std::size_t which) const {
  if (const auto tokens = kept(which, {})) return fmt::format("{}", *tokens);
  if (!plan_.cases[which].run) return "various";
  const auto heads = figures_.values.col(columns_.of(which, C::tokens));
  const Index empty = (heads.array() == 0).count();
  return fmt::format("{} of {} (mean of {} heads{})", short_number(heads.mean()), plan_.l, heads.size(),
                     empty > 0 ? fmt::format(", {} of which keep none", empty) : "");
}

std::optional<std::array<double, kTieNumbers>> EvictionTable::ties(std::size_t which) const {
  if (!plan_.ties || scoped_.empty()) return std::nullopt;
  std::array<double, kTieNumbers> mean{};
  for (Index n = 0; n < kTieNumbers; ++n) mean[n] = scoped_.mean({}, columns_.ties_of(which) + n);
  return std::isnan(mean[0]) ? std::nullopt : std::optional(mean);
}

Json EvictionTable::ties() const {
  Json all = Json::object();
  for (std::size_t c = 0; c < plan_.cases.size(); ++c)
    if (const auto found = ties(c))
      for (Index n = 0; n < kTieNumbers; ++n)
        all[plan_.cases[c].file_name()][std::string(name_of_ties(n))] = (*found)[n];
  return all;
}

void write_kept_differences(const ResultFolder& folder, Index layer, const EvictionPlan& plan,
                            const std::vector<std::vector<KeptSet>>& kept) {
  for (const SemanticsPair& pair : plan.pairs) {
    const EvictionCase &a = plan.cases[pair.first], &b = plan.cases[pair.second];
    std::vector<std::int32_t> difference;
    for (std::size_t row = 0; row < kept[pair.first].size(); ++row) {
      const KeptSet &here = kept[pair.first][row], &there = kept[pair.second][row];
      for (std::size_t p = 0; p < here.size(); ++p)
        difference.push_back(static_cast<std::int32_t>(here[p]) - static_cast<std::int32_t>(there[p]));
    }
    const std::size_t rows = kept[pair.first].size();
    const std::size_t shape[] = {rows, difference.size() / rows};
    write_npy(
        folder.layer_file(layer, fmt::format("diff/{}-{}-{}-{}-{}.npy", file_word(a.policy), a.semantics,
                                             b.semantics, a.phase.file_name(), a.budget_label)),
        shape, std::span<const std::int32_t>(difference));
  }
}

namespace {

/// One line of the table: all budgets of a policy under one semantics in one phase.
struct Line {
  std::string policy, semantics, phase;
  std::vector<std::optional<std::size_t>> cases;  // by budget
};

std::vector<Line> lines_of(const EvictionPlan& plan) {
  std::vector<Line> lines;
  for (std::size_t c = 0; c < plan.cases.size(); ++c) {
    const EvictionCase& which = plan.cases[c];
    if (!which.run || !which.kept) continue;
    const std::string phase = which.phase.name();
    auto line = std::ranges::find_if(lines, [&](const Line& known) {
      return known.policy == which.policy && known.semantics == which.semantics && known.phase == phase;
    });
    if (line == lines.end()) {
      line = lines.insert(line, {which.policy, which.semantics, phase, {}});
      line->cases.resize(plan.budgets.size());
    }
    line->cases.at(which.budget) = c;
  }
  return lines;
}

std::string cell(const EvictionTable& table, std::size_t which) {
  const auto* const error = table.entry(which, EvictionFigure::output_error, table.best_rows());
  const auto recall = table.of_model(which, EvictionFigure::oracle_recall, RowSet::future);
  std::string text = error == nullptr ? "-" : with_median_head(error->model, median(error->heads));
  if (recall && !std::isnan(*recall)) text += fmt::format(" ({:.2f})", *recall);
  return text;
}

bool one_for_all_layers(const CacheFormatRun& run) {
  return std::ranges::all_of(run.of_layers,
                             [&](const auto& layer) { return layer == run.of_layers.front(); });
}

/// "after the eviction, iap prunes 0.5 of the key channels, keys 4 bits per channel (groups of 32 tokens);
/// values ..".
std::string compression_text(const Compression& compression) {
  std::string text = "after the eviction";
  if (compression.channels)
    text +=
        fmt::format(", {} prunes {:g} of the key channels", compression.channels->name, compression.ratio);
  if (compression.formats.size() == 1 && one_for_all_layers(compression.formats.front()))
    return text + ", " + format_text(compression.formats.front().of_layers.front()) + "\n";
  for (const CacheFormatRun& run : compression.formats) {
    text += fmt::format("\n  {}", run.name);
    for (std::size_t layer = 0; layer < run.of_layers.size(); ++layer) {
      const bool begins = layer == 0 || run.of_layers[layer] != run.of_layers[layer - 1];
      if (!begins) continue;
      text += layer == 0 ? ": " : fmt::format("\n    from layer {}: ", layer);
      text += format_text(run.of_layers[layer]);
    }
  }
  return text + "\n";
}

/// Bytes of a case's caches as a percentage of the whole prompt's; empty without compression.
std::string bytes_text(const EvictionPlan& plan, const EvictionTable& table, std::size_t which) {
  if (!plan.compression) return "";
  return fmt::format(" {:.0f} %", 100 * table.share_of_bytes(which));
}

/// The widths of the first columns, and of each budget's.
struct Widths {
  std::size_t policy = 6, semantics = 9, phase = 5, budget = 24;
  std::string begun(const Line& line) const {
    return fmt::format("{:{}}  {:{}}  {:{}}", line.policy, policy, line.semantics, semantics, line.phase,
                       phase);
  }
  /// A table line; `cell` formats each case.
  template <class Cell>
  std::string whole(const Line& line, const Cell& cell) const {
    std::string text = begun(line);
    for (const std::optional<std::size_t> which : line.cases)
      text += fmt::format("  {:>{}}", which ? cell(*which) : std::string("-"), budget);
    return text + '\n';
  }
};

/// The column heading of every budget.
std::vector<std::string> headings(const EvictionPlan& plan) {
  std::vector<std::string> texts;
  for (const Budget& budget : plan.budgets)
    texts.push_back(kept_with_share(budget.label(), rest_of(budget.ratio(plan.l))));
  return texts;
}

/// Predicted costs of the cases in nats a step; empty if the dump has no gradients of such rows.
std::string nats_report(const EvictionTable& table, const std::vector<Line>& lines, const Widths& widths) {
  const auto cell = [&](std::size_t which) {
    const auto step = table.of_model(which, EvictionFigure::loss_step, table.best_rows());
    const auto layer = table.of_model(which, EvictionFigure::loss_layer, table.best_rows());
    return step && layer ? fmt::format("{:.3g} ({:.3g})", *step, *layer) : std::string();
  };
  const auto first = lines.empty() ? std::nullopt : lines.front().cases.front();
  if (!first || cell(*first).empty()) return "";
  std::string text =
      fmt::format("\npredicted nats a step on the {} rows: loss_step (in brackets: loss_layer)\n",
                  name_of(table.best_rows()));
  for (const Line& line : lines) text += widths.whole(line, cell);
  return text + kNatsPromise + '\n';
}

std::string shared_report(const EvictionPlan& plan, const EvictionTable& table, const Widths& widths) {
  std::string text = "\ntokens that two semantics share, over all heads (their errors are above)\n";
  for (std::size_t pair = 0; pair < plan.pairs.size(); ++pair) {
    const EvictionCase& here = plan.cases[plan.pairs[pair].first];
    if (here.phase.decodes() || here.budget > 0) continue;
    const std::string other = plan.cases[plan.pairs[pair].second].semantics;
    std::string row = fmt::format("{:{}}  {:{}}  {:18}", here.policy, widths.policy, here.phase.name(),
                                  widths.phase, here.semantics + " / " + other);
    for (std::size_t b = 0; b < plan.budgets.size(); ++b)
      for (std::size_t same = 0; same < plan.pairs.size(); ++same) {
        const EvictionCase& there = plan.cases[plan.pairs[same].first];
        if (there.budget == b && there.policy == here.policy && there.semantics == here.semantics &&
            there.phase.name() == here.phase.name() && plan.cases[plan.pairs[same].second].semantics == other)
          row += fmt::format("  {:>12.1f} %", 100 * table.shared(same));
      }
    text += row + '\n';
  }
  return text;
}

std::string ties_report(const EvictionPlan& plan, const EvictionTable& table, const std::vector<Line>& lines,
                        const Widths& widths) {
  if (!plan.ties) return "";
  std::string text =
      "\ntokens of a head that tie with the last one kept: as scored / in float16 / in bfloat16\n";
  for (const Line& line : lines)
    text += widths.whole(line, [&](std::size_t which) {
      const auto found = table.ties(which);
      return found ? fmt::format("{:.3g} / {:.3g} / {:.3g}", (*found)[0], (*found)[1], (*found)[2])
                   : std::string("-");
    });
  return text;
}

/// The layers that lose most when the whole prompt is stored in each of the formats: candidates to spare.
std::string dearest_layers(const EvictionPlan& plan, const EvictionTable& table) {
  std::string text;
  for (std::size_t c = 0; c < plan.cases.size(); ++c) {
    const EvictionCase& which = plan.cases[c];
    if (which.run || which.kept != plan.l || plan.compression->formats.empty()) continue;
    std::vector<std::pair<double, Index>> errors;
    if (const auto* const found = table.entry(c, EvictionFigure::output_error, table.best_rows()))
      for (std::size_t layer = 0; layer < found->layers.size(); ++layer)
        if (!std::isnan(found->layers[layer]))
          errors.emplace_back(found->layers[layer], table.layers()[layer]);
    if (errors.size() < 4) continue;
    std::ranges::sort(errors, std::greater<>());
    if (errors.front().first == 0) continue;
    text += fmt::format("{}:", which.policy);
    for (std::size_t n = 0; n < 3; ++n)
      text += fmt::format("{} {} ({:.3g})", n > 0 ? "," : "", errors[n].second, errors[n].first);
    text += fmt::format("; median layer {:.3g}\n", errors[errors.size() / 2].first);
  }
  return text.empty() ? ""
                      : "\nlayers that lose most of their output, to be spared with ;LAYERS:FORMAT\n" + text;
}

std::vector<JudgedCase> judged(const EvictionPlan& plan, const EvictionTable& table) {
  std::vector<JudgedCase> cases;
  for (std::size_t c = 0; c < plan.cases.size(); ++c) {
    const EvictionCase& which = plan.cases[c];
    const auto error = table.of_model(c, EvictionFigure::output_error, table.best_rows());
    const auto nats = table.of_model(c, EvictionFigure::loss_step, table.best_rows());
    if (error && nats && !std::isnan(*error) && !std::isnan(*nats))
      cases.push_back(
          {fmt::format("{} {} {}", which.semantics, which.phase.name(), which.budget_label), *error, *nats});
  }
  return cases;
}

}  // namespace

std::string eviction_report(const EvictionPlan& plan, const EvictionTable& table) {
  const std::vector<Line> lines = lines_of(plan);
  Widths widths{.budget = plan.compression ? std::size_t{29} : std::size_t{24}};
  for (const Line& line : lines) {
    widths.policy = std::max(widths.policy, line.policy.size());
    widths.semantics = std::max(widths.semantics, line.semantics.size());
    widths.phase = std::max(widths.phase, line.phase.size());
  }
  for (const std::string& heading : headings(plan)) widths.budget = std::max(widths.budget, heading.size());
  for (const EvictionCase& which : plan.cases)
    if (!which.probe) widths.policy = std::max(widths.policy, which.policy.size());
  std::string text = plan.compression ? compression_text(*plan.compression) : "";
  text +=
      fmt::format("output error {} on the {} rows{}{}\n", kOverHeads, name_of(table.best_rows()),
                  table.best_rows() == RowSet::future ? " (in brackets: recall of the oracle's tokens)" : "",
                  plan.compression ? ", and the caches' share of the prompt's bytes" : "");
  if (!lines.empty()) {
    text += widths.begun({"policy", "semantics", "phase", {}});
    for (const std::string& heading : headings(plan)) text += fmt::format("  {:>{}}", heading, widths.budget);
    text += '\n';
  }
  for (const Line& line : lines)
    text += widths.whole(
        line, [&](std::size_t which) { return cell(table, which) + bytes_text(plan, table, which); });
  for (std::size_t c = 0; c < plan.cases.size(); ++c)
    if (!plan.cases[c].probe && (!plan.cases[c].run || !plan.cases[c].kept)) {  // a finding reads the probes
      text += fmt::format("{:{}}  {:{}}  kept {} tokens: {}{}\n", plan.cases[c].policy, widths.policy,
                          plan.cases[c].semantics, widths.semantics, table.kept_text(c), cell(table, c),
                          bytes_text(plan, table, c));
    }
  if (plan.compression) text += dearest_layers(plan, table);
  text += nats_report(table, lines, widths);
  text += ties_report(plan, table, lines, widths);
  const auto after_prompt = [&](const SemanticsPair& pair) {
    return !plan.cases[pair.first].phase.decodes();
  };
  const std::string size =
      lines.size() > 1 ? fmt::format("{}\n{}\n", kOnePrompt, how_large(judged(plan, table))) : "";
  if (std::ranges::none_of(plan.pairs, after_prompt)) return text + size;

  return text + shared_report(plan, table, widths) + size;
}

}  // namespace kvreplay
