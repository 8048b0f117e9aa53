#include "viewer/questions/live_findings.hpp"

#include "analysis/results/result_reader.hpp"
#include "analysis/tokens/token_agreement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace kvreplay::viewer {

namespace {

/// Longer prompts are not read row by row.
constexpr Index kMostRows = 4096;
constexpr const char* kPolicies[] = {"streaming", "h2o",          "tova",   "snapkv",
                                     "keydiff",   "snapkv+joint", "oracle", "oracle_exact"};

MetricTable agreement_of(const std::vector<std::shared_ptr<const HeadSummary>>& heads,
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

/// The policy that the finding is of, as setting A, and its budget, as the queue's.
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

EvictionOptions finding_evictions() {
  EvictionOptions options;
  options.policies.clear();
  for (const char* policy : kPolicies) options.policies.emplace_back(parse_policy(policy, {}));
  options.budgets = {{{}, 0.8}};
  options.quick = {kMostRows, 0};
  options.probe_keys = true;
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

LayerEvictions live_evictions(const Run& run, Index layer, JobControl& job) {
  EvictStage stage(*run.dump(), finding_evictions(), job.compute());
  const Index n_kv = run.shape().n_kv;
  return layer_evictions<float>(stage, layer, n_kv, [&](Index head) {
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
  tables.called = run->layers().numbers();
  if (!heads.empty()) {
    const DumpShape& shape = run->shape();
    tables.agreement = agreement_of(heads, tables.layers, shape.n_kv,
                                    window_rows(shape.l, shape.first_query(), window).count());
  }
  if (!layers.empty()) {
    const EvictStage stage(*run->dump(), finding_evictions(), job.compute());
    std::vector<const LayerEvictions*> parts;
    for (const auto& layer : layers) parts.push_back(layer.get());
    tables.evictions = stage.table(joined(tables.layers, parts)).metrics();
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
    // For a finding of a layer, its worst head.
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
    case FindingKind::keys:
      return PanelKind::heads;
    case FindingKind::budgets:
      return PanelKind::budgets;
    case FindingKind::channels:
    case FindingKind::sum:
      return PanelKind::channels;
  }
  return PanelKind::heads;
}

const std::vector<Finding>& FindingSource::list() const {
  static const std::vector<Finding> none;
  return found_ ? found_->list : none;
}

void FindingSource::look(PanelContext& context) {
  pending_ = waits_ = false;
  progress_.clear();
  error_.clear();
  const std::shared_ptr<const Run>& run = context.state.run();
  const Key now = run ? run->key() : Key();
  if (now != run_key_) {
    run_key_ = now;
    heads_key_ = {};
    found_.reset();
    layers_.assign(run ? static_cast<std::size_t>(run->shape().layers) : 0, nullptr);
    layer_round_.restart(std::ssize(layers_));
    most_ = run && run->results() != nullptr ? kMostFindings : kLiveFindings;
  }
  if (run == nullptr) return;
  if (run->results() != nullptr)
    look_at_results(context);
  else
    look_at_dump(context);
}

void FindingSource::look_at_results(PanelContext& context) {
  if (found_) return;
  const JobRequest request{.key = {run_key_, "findings"},
                           .title = "What is worth knowing of the results",
                           .urgency = Urgency::idle};
  const auto answer = context.queue.ask<Findings>(request, [run = context.state.run()](JobControl&) {
    Tables tables(*run->results());
    tables.called = run->layers().numbers();
    return Findings{findings_of(tables)};
  });
  pending_ = answer.pending;
  progress_ = "reading the results";
  error_ = answer.error;
  found_ = answer.value;
  if (found_) most_ = found_->list.size();
}

void FindingSource::look_at_dump(PanelContext& context) {
  const std::shared_ptr<const Run>& run = context.state.run();
  const DumpShape& shape = run->shape();
  const Index window = context.state.comparison.window;
  if (const Key now(run_key_, window); now != heads_key_) {
    heads_key_ = now;
    heads_.assign(static_cast<std::size_t>(shape.layers * shape.n_kv), nullptr);
    head_round_.restart(std::ssize(heads_));
    complete_ = false;
  }
  if (complete_) return;
  waits_ = begun_ != run_key_ && finding_work(shape, window) > kUnaskedWork;
  // Where the Head map has ranked them all, asking again costs nothing.
  if (waits_ && !context.state.all_ranked) return;
  if (!take_heads(context)) return;
  const bool all = !waits_ && take_layers(context);
  find(context, all);
}

bool FindingSource::take_heads(PanelContext& context) {
  const Index n_kv = context.state.run()->shape().n_kv;
  head_round_.go_on([&](Index h) { return ask_summary(context, h / n_kv, h % n_kv, Urgency::idle); },
                    [&](Index h, const Answer<HeadSummary>& answer) { heads_[h] = answer.value; });
  return all_taken(head_round_, "ranking heads");
}

bool FindingSource::take_layers(PanelContext& context) {
  constexpr int kAtOnce = 4;  // each takes seconds and holds a layer's heads
  const auto ask = [&](Index layer) {
    const JobRequest request{
        .key = {run_key_, "finding_evictions", layer},
        .title = fmt::format("Evictions to compare, layer {}", context.state.run()->layer_number(layer)),
        .urgency = Urgency::idle};
    return context.queue.ask<LayerEvictions>(request, [run = context.state.run(), layer](JobControl& job) {
      return live_evictions(*run, layer, job);
    });
  };
  layer_round_.go_on(
      ask, [&](Index layer, const Answer<LayerEvictions>& answer) { layers_[layer] = answer.value; },
      layer_round_.count(), kAtOnce);
  return all_taken(layer_round_, "comparing policies, layers");
}

bool FindingSource::all_taken(const BackgroundRound& round, std::string_view what) {
  pending_ = round.done() < round.count();
  progress_ = fmt::format("{}: {} of {}", what, round.done(), round.count());
  if (round.failed() > 0) error_ = round.error();
  return !pending_ && round.failed() == 0;
}

void FindingSource::find(PanelContext& context, bool with_layers) {
  const Index window = context.state.comparison.window;
  const JobRequest request{.key = {run_key_, "findings", window, with_layers},
                           .title = "What is worth knowing of the dump",
                           .urgency = Urgency::idle};
  const auto answer = context.queue.ask<Findings>(
      request, [run = context.state.run(), heads = heads_,
                layers = with_layers ? layers_ : std::vector<std::shared_ptr<const LayerEvictions>>(),
                window](JobControl& job) { return live_findings(run, heads, layers, window, job); });
  pending_ = pending_ || answer.pending;
  if (!answer.error.empty()) error_ = answer.error;
  if (answer) found_ = answer.value;
  complete_ = with_layers && answer;
}

}  // namespace kvreplay::viewer
