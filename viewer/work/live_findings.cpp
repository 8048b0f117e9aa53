#include "viewer/work/live_findings.hpp"

#include "analysis/eviction/evict_stage.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace kvreplay::viewer {
namespace {

/// Longer prompts are not read row by row.
constexpr Index kMostRows = 4096;
constexpr const char* kPolicies[] = {"streaming", "h2o",          "tova",   "snapkv",
                                     "keydiff",   "snapkv+joint", "oracle", "oracle_exact"};

FigureTable agreement_of(const std::vector<std::shared_ptr<const HeadSummary>>& heads,
                         const std::vector<Index>& layers, Index n_kv, Index window) {
  AgreementTable table;
  table.pairs = heads.front()->pairs;
  for (const auto& head : heads) table.heads.push_back({head->layer, head->kv_head, head->agreements});
  return agreement_figures(table, layers, n_kv, heads.front()->l, window);
}

const std::string& key_of(const Finding& finding, std::string_view column) {
  static const std::string none;
  for (const auto& [name, value] : finding.place.keys)
    if (name == column) return value;
  return none;
}

/// The policy that the finding is of, as setting A, and its budget, as the desk's.
void take_setting(const Finding& finding, AppState& state) {
  WhatIfSettings& setting = state.setting_a;
  const std::string& policy = key_of(finding, "policy");
  const std::size_t end = policy.find_first_of("+:");
  if (!kBases.named(policy.substr(0, end))) return;  // a kept set of the user's
  setting = {};
  setting.base = policy.substr(0, end);
  if (end != std::string::npos) setting.score = policy.substr(end + 1);
  if (const auto semantics = kSemantics.named(key_of(finding, "semantics"))) setting.semantics = *semantics;
  if (const auto budget = budget_labelled(key_of(finding, "budget"))) {
    state.budget.sigma_budget = !budget->tokens;
    if (budget->tokens)
      state.budget.budget = *budget->tokens;
    else
      state.budget.sigma = budget->sigma;
  }
  if (const auto method = kCompensations.named(key_of(finding, "method"))) setting.compensation = *method;
}

}  // namespace

std::size_t bytes_of(const Findings& findings) {
  std::size_t bytes = sizeof(findings);
  for (const Finding& one : findings.list) bytes += sizeof(one) + one.text.capacity();
  return bytes;
}

EvictionOptions finding_evictions() {
  EvictionOptions options;
  options.policies.clear();
  for (const char* policy : kPolicies) options.policies.emplace_back(parse_policy(policy, {}));
  options.budgets = {{{}, 0.8}};
  options.quick = {kMostRows, 0};
  return options;
}

double finding_work(const DumpShape& shape, Index window) {
  const auto l = static_cast<double>(shape.l);
  const double measured = static_cast<double>(kMeasuredRows + shape.T - shape.l);
  const double rows = static_cast<double>(std::min(window, shape.l)) +
                      static_cast<double>(std::size(kPolicies)) * measured +
                      (shape.l <= kMostRows ? l / 2 : 0);
  return rows * l * static_cast<double>(shape.layers * shape.n_q);
}

std::size_t bytes_of(const LayerEvictions& layer) {
  return sizeof(layer) + (static_cast<std::size_t>(layer.heads.size()) + layer.whole.size()) * sizeof(double);
}

LayerEvictions live_evictions(const Run& run, Index layer, JobControl& job) {
  EvictStage stage(*run.dump(), finding_evictions(), job.compute());
  const Index n_kv = run.shape().n_kv;
  return layer_evictions(stage, layer, n_kv, [&](Index head) {
    job.check();
    job.progress(static_cast<double>(head) / static_cast<double>(n_kv));
    return run.head(layer, head);
  });
}

Findings live_findings(const std::shared_ptr<const Run>& run,
                       const std::vector<std::shared_ptr<const HeadSummary>>& heads,
                       const std::vector<std::shared_ptr<const LayerEvictions>>& layers, Index window,
                       JobControl& job) {
  FigureTables tables;
  tables.shape = run->shape();
  tables.layers.resize(static_cast<std::size_t>(run->shape().layers));
  std::iota(tables.layers.begin(), tables.layers.end(), Index{0});
  if (!heads.empty()) {
    const DumpShape& shape = run->shape();
    tables.agreement = agreement_of(heads, tables.layers, shape.n_kv,
                                    window_rows(shape.l, shape.first_query(), window).count());
  }
  if (!layers.empty()) {
    const EvictStage stage(*run->dump(), finding_evictions(), job.compute());
    std::vector<const LayerEvictions*> parts;
    for (const auto& layer : layers) parts.push_back(layer.get());
    tables.evictions = eviction_figures(stage, joined(tables.layers, parts));
  }
  std::optional<TokenMetrics> known;  // of the one head that is asked for
  const auto values = [&](Index layer, Index kv_head, const std::string& metric) {
    if (!known) {
      HeadSummaryOptions options;
      options.window = window;
      options.metrics = heads.front()->metrics;
      const HeadSummary head = summarise_head(*run->head(layer, kv_head), options, job.compute());
      known = *head.tokens;
    }
    const auto of = kTokenMetrics.named(metric);
    const Matrix<double> none;
    const Matrix<double>& row = of ? (*known)[*of] : none;
    // As the file has them: equal numbers there are equal ranks here.
    std::vector<double> stored(static_cast<std::size_t>(row.size()));
    std::transform(row.data(), row.data() + row.size(), stored.begin(),
                   [](double value) { return static_cast<double>(static_cast<float>(value)); });
    return stored;
  };
  return {findings_of(tables, {values, [&] { return run->labels(); }})};
}

PanelKind follow(const Finding& finding, AppState& state) {
  Selection next = state.selection();
  const FindingPlace& place = finding.place;
  if (place.layer) {
    next.layer = *place.layer;
    // Of a layer, its worst head.
    const auto worst = std::find_if(state.worst_first.begin(), state.worst_first.end(),
                                    [&](const auto& head) { return head.first == *place.layer; });
    if (!place.kv_head && worst != state.worst_first.end()) next.kv_head = worst->second;
  }
  if (place.kv_head) {
    next.kv_head = *place.kv_head;
    next.query_head.reset();  // figures are of the group
  }
  if (place.token) next.token = place.token;
  if (!(next == state.selection())) state.select(std::move(next));
  if (const auto score = kTokenMetrics.named(key_of(finding, "score"))) state.comparison.score = *score;
  if (const auto reference = kTokenMetrics.named(key_of(finding, "reference")))
    state.comparison.reference = *reference;
  const bool live = state.run() && state.run()->dump() != nullptr;
  switch (finding.kind) {
    case FindingKind::head:
      return PanelKind::scatter;
    case FindingKind::future:
      return PanelKind::curves;
    case FindingKind::policy:
    case FindingKind::compensation:
    case FindingKind::cost:
      if (!live) return PanelKind::heads;
      take_setting(finding, state);
      state.show_b = false;
      return PanelKind::what_if;
    case FindingKind::layer:
      return PanelKind::heads;
    case FindingKind::budgets:
      return PanelKind::budgets;
    case FindingKind::channels:
    case FindingKind::sum:
      return PanelKind::channels;
  }
  return PanelKind::heads;
}

}  // namespace kvreplay::viewer
