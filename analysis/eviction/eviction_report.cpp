#include "analysis/eviction/eviction_tables.hpp"
#include "analysis/results/comparisons.hpp"
#include "analysis/results/kept_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace kvreplay {
namespace {

/// One line of the table: all budgets of a policy under one semantics in one phase.
struct Line {
  std::string policy, semantics, phase;
  std::vector<std::size_t> cases;  // by budget
};

std::vector<Line> lines_of(const EvictionPlan& plan) {
  std::vector<Line> lines;
  for (std::size_t c = 0; c < plan.cases.size(); ++c) {
    const EvictionCase& which = plan.cases[c];
    if (!which.run) continue;
    const std::string phase = which.phase.name();
    if (lines.empty() || lines.back().policy != which.policy || lines.back().semantics != which.semantics ||
        lines.back().phase != phase)
      lines.push_back({which.policy, which.semantics, phase, {}});
    lines.back().cases.push_back(c);
  }
  return lines;
}

std::string cell(const EvictionTable& table, std::size_t which) {
  const RowSet rows = table.best_rows();
  const auto error = table.value(which, {}, EvictionFigure::output_error, rows);
  const auto recall = table.value(which, {}, EvictionFigure::oracle_recall, RowSet::future);
  std::string text =
      error ? with_median_head(*error, table.median_head(which, EvictionFigure::output_error, rows))
            : std::string("-");
  if (recall && !std::isnan(*recall)) text += fmt::format(" ({:.2f})", *recall);
  return text;
}

int width_of(const EvictionPlan& plan) { return plan.compression ? 29 : 24; }

/// "then iap:0.5 prunes key channels, 4 bits quantize the rest (groups of 32, the last 128 tokens exact)".
std::string compression_text(const Compression& compression) {
  const auto& [channels, ratio, recent, protection, quantization] = compression;
  std::string text = "after the eviction";
  if (channels) text += fmt::format(", {} prunes {:g} of the key channels", channels->name, ratio);
  if (quantization)
    text += fmt::format(", {} bits a number (groups of {}, the last {} tokens exact)", quantization->bits,
                        quantization->group, quantization->residual);
  return text + "\n";
}

/// What a cache takes of the whole prompt's bytes.
std::string bytes_text(const EvictionPlan& plan, const EvictionTable& table, std::size_t which) {
  if (!plan.compression) return "";
  return fmt::format(" {:.0f} %", 100 * table.share_of_bytes(which));
}

/// What the cases are predicted to cost the model; empty where the dump has no gradients of such rows.
std::string nats_report(const EvictionPlan& plan, const EvictionTable& table, const std::vector<Line>& lines,
                        std::size_t policy, std::size_t semantics, std::size_t phase) {
  const auto cell = [&](std::size_t which) {
    const auto step = table.value(which, {}, EvictionFigure::loss_step, table.best_rows());
    const auto layer = table.value(which, {}, EvictionFigure::loss_layer, table.best_rows());
    return step && layer ? fmt::format("{:.3g} ({:.3g})", *step, *layer) : std::string();
  };
  if (lines.empty() || cell(lines.front().cases.front()).empty()) return "";
  std::string text =
      fmt::format("\npredicted nats a step on the {} rows: loss_step (in brackets: loss_layer)\n",
                  name_of(table.best_rows()));
  for (const Line& line : lines) {
    text +=
        fmt::format("{:{}}  {:{}}  {:{}}", line.policy, policy, line.semantics, semantics, line.phase, phase);
    for (const std::size_t which : line.cases) text += fmt::format("  {:>{}}", cell(which), width_of(plan));
    text += '\n';
  }
  return text + kNatsPromise + '\n';
}

std::vector<JudgedCase> judged(const EvictionPlan& plan, const EvictionTable& table) {
  std::vector<JudgedCase> cases;
  for (std::size_t c = 0; c < plan.cases.size(); ++c) {
    const EvictionCase& which = plan.cases[c];
    const auto error = table.value(c, {}, EvictionFigure::output_error, table.best_rows());
    const auto nats = table.value(c, {}, EvictionFigure::loss_step, table.best_rows());
    if (error && nats && !std::isnan(*error) && !std::isnan(*nats))
      cases.push_back(
          {fmt::format("{} {} {}", which.semantics, which.phase.name(), which.budget_label), *error, *nats});
  }
  return cases;
}

}  // namespace

std::string eviction_report(const EvictionPlan& plan, const EvictionTable& table) {
  const std::vector<Line> lines = lines_of(plan);
  std::size_t policy = 6, semantics = 9, phase = 5;
  for (const Line& line : lines) {
    policy = std::max(policy, line.policy.size());
    semantics = std::max(semantics, line.semantics.size());
    phase = std::max(phase, line.phase.size());
  }
  std::string text = plan.compression ? compression_text(*plan.compression) : "";
  text +=
      fmt::format("output error {} on the {} rows{}{}\n", kOverHeads, name_of(table.best_rows()),
                  table.best_rows() == RowSet::future ? " (in brackets: recall of the oracle's tokens)" : "",
                  plan.compression ? ", and the caches' share of the prompt's bytes" : "");
  const int width = width_of(plan);
  if (!lines.empty()) {
    text += fmt::format("{:{}}  {:{}}  {:{}}", "policy", policy, "semantics", semantics, "phase", phase);
    for (const Budget& budget : plan.budgets)
      text += fmt::format("  {:>{}}", kept_text(budget.label()), width);
    text += '\n';
  }
  for (const Line& line : lines) {
    text +=
        fmt::format("{:{}}  {:{}}  {:{}}", line.policy, policy, line.semantics, semantics, line.phase, phase);
    for (const std::size_t which : line.cases)
      text += fmt::format("  {:>{}}", cell(table, which) + bytes_text(plan, table, which), width);
    text += '\n';
  }
  for (std::size_t c = 0; c < plan.cases.size(); ++c)
    if (!plan.cases[c].run) {
      const auto tokens = table.kept(c, {});
      text += fmt::format("{:{}}  {:{}}  kept {} tokens: {}{}\n", plan.cases[c].policy, policy,
                          plan.cases[c].semantics, semantics,
                          tokens ? fmt::format("{}", *tokens) : std::string("various"), cell(table, c),
                          bytes_text(plan, table, c));
    }
  text += nats_report(plan, table, lines, policy, semantics, phase);
  const auto after_prompt = [&](const SemanticsPair& pair) {
    return !plan.cases[pair.first].phase.decodes();
  };
  const std::string size =
      lines.size() > 1 ? fmt::format("{}\n{}\n", kOnePrompt, how_large(judged(plan, table))) : "";
  if (std::none_of(plan.pairs.begin(), plan.pairs.end(), after_prompt)) return text + size;

  text += "\ntokens that two semantics share, over all heads (their errors are above)\n";
  for (std::size_t pair = 0; pair < plan.pairs.size(); ++pair) {
    const EvictionCase& here = plan.cases[plan.pairs[pair].first];
    if (here.phase.decodes() || here.budget > 0) continue;
    const std::string other = plan.cases[plan.pairs[pair].second].semantics;
    std::string row = fmt::format("{:{}}  {:{}}  {:18}", here.policy, policy, here.phase.name(), phase,
                                  here.semantics + " / " + other);
    for (std::size_t b = 0; b < plan.budgets.size(); ++b)
      for (std::size_t same = 0; same < plan.pairs.size(); ++same) {
        const EvictionCase& there = plan.cases[plan.pairs[same].first];
        if (there.budget == b && there.policy == here.policy && there.semantics == here.semantics &&
            there.phase.name() == here.phase.name() && plan.cases[plan.pairs[same].second].semantics == other)
          row += fmt::format("  {:>12.1f} %", 100 * table.shared(same));
      }
    text += row + '\n';
  }
  return text + size;
}

}  // namespace kvreplay
