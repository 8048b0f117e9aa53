#include "analysis/eviction/eviction_options.hpp"
#include "analysis/findings/candidates.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/oracles.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

// What evictions cost: evictions.csv.

namespace kvreplay {
namespace {

/// The value that most results have, or what stands first in its place.
std::string usual(const std::vector<std::string>& values, const char* value) {
  return std::find(values.begin(), values.end(), value) != values.end() ? value : values.front();
}

/// The columns that name a policy's figure there.
std::vector<std::pair<std::string, std::string>> keys_of(const MiddleCase& at, const std::string& policy,
                                                         const char* metric) {
  return {{"policy", policy},    {"semantics", at.semantics}, {"phase", at.phase},
          {"budget", at.budget}, {"rows", at.rows},           {"metric", metric}};
}

std::string in_words(const std::string& rows) { return rows == "future" ? "decoding steps" : "window"; }

}  // namespace

std::optional<MiddleCase> middle_case(const FigureTable& evictions, Index l) {
  Wanted common = {{"metric", "output_error"}};
  const std::vector<std::string> all_rows = evictions.distinct("rows", common);
  if (all_rows.empty()) return std::nullopt;
  MiddleCase at;
  at.rows = usual(all_rows, "future");
  common.emplace_back("rows", at.rows);
  at.phase = usual(evictions.distinct("phase", common), "prefill");
  common.emplace_back("phase", at.phase);
  at.semantics = usual(evictions.distinct("semantics", common), "paper");
  common.emplace_back("semantics", at.semantics);
  std::vector<std::pair<double, std::string>> budgets;
  for (const std::string& budget : evictions.distinct("budget", common))
    if (const double kept = tokens_kept(budget, "", l); !std::isnan(kept)) budgets.emplace_back(kept, budget);
  if (budgets.empty()) return std::nullopt;
  std::sort(budgets.begin(), budgets.end());
  at.budget = budgets[(budgets.size() - 1) / 2].second;
  return at;
}

BestOf best_of(const FigureTable& evictions, const MiddleCase& at) {
  BestOf best;
  const Wanted common = with(at.wanted(), "metric", "output_error");
  for (const FigureEntry& entry : evictions.entries()) {
    if (!evictions.matches(entry, common) || std::isnan(entry.model)) continue;
    const bool oracle = is_oracle(Table::evictions, "policy", evictions.key(entry, "policy"));
    const FigureEntry*& lowest = oracle ? best.oracle : best.runs;
    if (lowest == nullptr || entry.model < lowest->model) lowest = &entry;
  }
  return best;
}

std::optional<Finding> best_policy(const FigureTables& tables) {
  const FigureTable& evictions = tables.evictions;
  const auto at = middle_case(evictions, tables.shape.l);
  if (!at) return std::nullopt;
  const auto [best, oracle] = best_of(evictions, *at);
  if (best == nullptr || !(best->model > 0)) return std::nullopt;
  const Wanted common = with(at->wanted(), "metric", "output_error");
  Index others = 0, near = 0;
  const FigureEntry* worst = best;
  for (const FigureEntry& entry : evictions.entries()) {
    if (&entry == best || !evictions.matches(entry, common) || std::isnan(entry.model) ||
        is_oracle(Table::evictions, "policy", evictions.key(entry, "policy")))
      continue;
    ++others;
    if (entry.model < kDecides * best->model) ++near;
    if (entry.model > worst->model) worst = &entry;
  }
  const bool with_oracle = oracle != nullptr && oracle->model > 0;
  if (others == 0 && !with_oracle) return std::nullopt;
  const std::string name = evictions.key(*best, "policy");
  const double middle = median(best->heads);
  Finding finding{
      FindingKind::policy,
      fmt::format("{} loses {} ({}): output error {} on the {}{}", name,
                  others > 0 ? fmt::format("least of {} policies", others + 1) : "this much",
                  kept_text(at->budget), value_text(best->model), in_words(at->rows),
                  std::isnan(middle) ? "" : fmt::format(", {} in the median head", value_text(middle))),
      std::max(1.0, worst->model / best->model),
      {Table::evictions, keys_of(*at, name, "output_error")}};
  if (const auto* const nats =
          evictions.find(with(with(at->wanted(), "policy", name), "metric", kLossStep.name));
      nats != nullptr && !std::isnan(nats->model))
    finding.text += fmt::format(", predicted to cost {} nats a step (loss_step)", value_text(nats->model));
  if (with_oracle) {
    finding.weight = best->model / oracle->model;
    finding.text += fmt::format(", {} times what {} loses, which knows the future",
                                factor_text(finding.weight), evictions.key(*oracle, "policy"));
  }
  if (near > 0)
    finding.text += fmt::format("; {} of the others {} less than {:g} times as much, which is no decision",
                                near, near == 1 ? "loses" : "lose", kDecides);
  if (worst->model >= kDecides * best->model)
    finding.text += fmt::format("; {} loses {} times as much", evictions.key(*worst, "policy"),
                                factor_text(worst->model / best->model));
  finding.text += '.';
  return finding;
}

std::optional<Finding> heaviest_layer(const FigureTables& tables) {
  const FigureTable& evictions = tables.evictions;
  const std::vector<Index>& layers = tables.layers;
  const auto at = middle_case(evictions, tables.shape.l);
  const FigureEntry* const best = at ? best_of(evictions, *at).runs : nullptr;
  if (best == nullptr || layers.size() < 2) return std::nullopt;
  const std::string policy = evictions.key(*best, "policy");
  const auto finding = [&](const FigureEntry& entry, double largest, const char* metric) {
    const auto row = std::find(entry.layers.begin(), entry.layers.end(), largest) - entry.layers.begin();
    return Finding{FindingKind::layer,
                   "",
                   0,
                   {Table::evictions, keys_of(*at, policy, metric), layers[static_cast<std::size_t>(row)]}};
  };
  const Wanted common = with(at->wanted(), "policy", policy);
  if (const auto* const nats = evictions.find(with(common, "metric", "loss_layer"));
      nats != nullptr && nats->model > 0) {
    const double most = largest(nats->layers), share = most / nats->model;
    Finding found = finding(*nats, most, "loss_layer");
    found.weight = share * static_cast<double>(layers.size());
    found.text = fmt::format(
        "Layer {} carries {:.0f} % of all nats that {} is predicted to cost ({}): loss_layer {} of {} "
        "nats a step, in {} layers.",
        *found.place.layer, 100 * share, policy, kept_text(at->budget), value_text(most),
        value_text(nats->model), layers.size());
    return found;
  }
  const double most = largest(best->layers), middle = median(best->layers);
  if (!(middle > 0)) return std::nullopt;
  Finding found = finding(*best, most, "output_error");
  found.weight = most / middle;
  found.text = fmt::format(
      "Layer {} loses most of its output: with what {} keeps ({}) its output error is {}, {} "
      "times the median layer's {}.",
      *found.place.layer, policy, kept_text(at->budget), value_text(most), factor_text(found.weight),
      value_text(middle));
  return found;
}

}  // namespace kvreplay
