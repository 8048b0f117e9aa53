#include "viewer/questions/what_if.hpp"

#include "analysis/eviction/head_evictions.hpp"
#include "analysis/measure/case_outputs.hpp"
#include "analysis/results/scoped_figures.hpp"
#include "data/error.hpp"
#include "sim/gradient_rows.hpp"
#include "sim/loss/change_loss.hpp"
#include "viewer/questions/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvreplay::viewer {

PredictedLoss predicted_loss(const HeadGroup<float>& group, const LossRows& there, RowSet rows,
                             RowRange measured, const OutputChanges<float>& changes, Workers& workers) {
  PredictedLoss loss{there.on(rows).count()};
  if (loss.rows == 0) return loss;
  loss.row = loss.head = 0;
  loss.samples.assign(static_cast<std::size_t>(there.samples), 0.0);
  loss.steps.assign(static_cast<std::size_t>(there.samples * loss.rows), 0.0);
  const auto add = [](const std::vector<double>& to_add, std::vector<double>& sums) {
    std::transform(to_add.begin(), to_add.end(), sums.begin(), sums.begin(), std::plus<>{});
  };
  for (const ChangeLoss& of_query_head :
       change_losses(rows == RowSet::window ? group.g_window : group.g_future, there.on(rows),
                     {changes.change.front()}, measured, workers)) {
    loss.row += of_query_head.row;
    loss.head += of_query_head.head;
    add(of_query_head.samples, loss.samples);
    add(of_query_head.steps, loss.steps);
  }
  loss.row /= static_cast<double>(loss.rows);
  loss.head /= static_cast<double>(loss.rows);
  return loss;
}

void ModelLoss::add(Index layer, const PredictedLoss& head) {
  if (head.rows == 0) return;
  if (layer != layer_) {
    layers_ += half_mean(samples_);
    layer_ = layer;
    samples_.assign(head.samples.size(), 0.0);
  }
  rows_ = head.rows;
  row_ += head.row;
  std::transform(head.samples.begin(), head.samples.end(), samples_.begin(), samples_.begin(), std::plus<>{});
  steps_.resize(head.steps.size(), 0.0);
  std::transform(head.steps.begin(), head.steps.end(), steps_.begin(), steps_.begin(), std::plus<>{});
}

double ModelLoss::half_mean(const std::vector<double>& sums) const {
  double squares = 0;
  for (const double sum : sums) squares += sum * sum;
  return samples_.empty() ? 0
                          : squares / (2 * static_cast<double>(samples_.size()) * static_cast<double>(rows_));
}

double ModelLoss::row() const { return rows_ > 0 ? row_ : kNone; }
double ModelLoss::layer() const { return rows_ > 0 ? layers_ + half_mean(samples_) : kNone; }
double ModelLoss::step() const { return rows_ > 0 ? half_mean(steps_) : kNone; }

std::string why_no_nats(const Dump& dump, RowSet rows) {
  const DumpShape& shape = dump.shape();
  const bool window = rows == RowSet::window;
  // Whatever is measured ends where these do.
  const RowRange last = window ? RowRange{shape.l - 1, shape.l} : RowRange{shape.l, shape.T};
  const auto why = why_no_loss(dump, window ? Tensor::g_window : Tensor::g_future, last);
  return why ? fmt::format(
                   "Not in this dump: {}. kvcapture.py --gradients 24 --rows future,window writes them.",
                   *why)
             : std::string();
}

namespace {

const EvictionRule& rule_of(const EvictionPlan& plan) { return plan.runs.front().rules.front(); }

}  // namespace

BoundOptions bound(WhatIfSettings& settings) {
  static constexpr OptionFacts base{.name = "base"}, score{.name = "score"}, on_future{.name = "on-future"},
      block{.name = "block"}, painted{.name = "painted"};
  BoundOptions options = bound(static_cast<PolicySettings&>(settings));
  options.insert(
      options.end(),
      {bind_option(base, settings.base), bind_option(score, settings.score),
       bind_option(on_future, settings.on_future), bind_option(block, settings.block),
       bind_option(evict_option::compensate, settings.compensation),
       bind_option(evict_option::bits, settings.bits), bind_option(evict_option::rotate, settings.rotate),
       bind_option(evict_option::center, settings.center), bind_option(painted, settings.painted)});
  return options;
}

WhatIfSettings WhatIfSettings::without_compensation() const {
  WhatIfSettings plain = *this;
  plain.compensation = Compensation::none;
  return plain;
}

EvictionOptions evict_options_of(const WhatIfSettings& settings, const UserScore* score) {
  EvictionOptions options = options_of(settings);
  if (score != nullptr) options.scores = {score->named()};
  options.policies = {parse_policy(settings.policy(), names_of(options.scores))};
  options.phases = {settings.block > 0 ? Phase{Phase::Kind::blockwise, settings.block} : Phase{}};
  options.on = settings.on_future ? SearchRows::future : SearchRows::window;
  if (settings.compensation != Compensation::none) options.compensate = {settings.compensation};
  if (settings.bits) {
    options.stored.formats = {*settings.bits};
    options.stored.rotations = {settings.rotate};
    options.stored.centerings = {settings.center};
  }
  return options;
}

EvictionPlan what_if_plan(const WhatIfSettings& settings, const Dump& dump, const UserScore* score) {
  EvictionPlan plan = eviction_plan(dump, evict_options_of(settings, score));
  if (plan.cases.size() != 1)
    throw OptionError(evict_option::bits, "one format", settings.bits ? settings.bits->name : "several");
  for (GivenArray<double>& given : plan.scores) given.values = {};
  return plan;
}

std::optional<EvictionRule> own_rule(const std::string& policy, const PolicySettings& settings,
                                     const Run& run, const std::vector<UserScore>& scores) {
  std::vector<std::string> names;
  for (const UserScore& score : scores) names.push_back(score.name);
  try {
    const Index l = run.shape().l;
    return rule_of(parse_policy(policy, names), settings.semantics, {}, l,
                   settings.tokens(l, settings.semantics),
                   run.dump() != nullptr && run.dump()->projects_values());
  } catch (const InputError&) {
    return std::nullopt;
  }
}

Key score_key(const EvictionPlan& plan) {
  const EvictionRule& rule = rule_of(plan);
  Key key(rule.policy.given.has_value(), rule.metric, rule.per_visible_row, rule.shared_by_layer,
          rule.two_stages, rule.exchanges());
  if (needs_rows(rule)) key = {key, "window", rule.window};
  if (rule.policy.start.value_or(rule.policy.base) == EvictionBase::expected_attention)
    key = {key,
           "expected",
           rule.expected.epsilon,
           rule.expected.n_sink,
           rule.expected.n_future,
           rule.expected.project_values};
  if (const auto by = rule.greedy_by()) {
    const RowRange rows = plan.search_rows(*by);
    key = {key, "greedy", *by, rows.begin, rows.end};
  }
  return key;
}

bool ranks_by_layer(const EvictionPlan& plan) { return rule_of(plan).shared_by_layer; }

WhatIfLayer what_if_layer(const EvictionPlan& plan, const DumpShape& shape,
                          const std::function<std::shared_ptr<const HeadGroup<float>>(Index)>& head,
                          const std::function<GivenScores(Index)>& given, JobControl& job) {
  const auto next = [&](Index g) {
    job.check();
    job.progress(static_cast<double>(g) / static_cast<double>(shape.n_kv));
    return head(g);
  };
  return {layer_scores<float>(plan, shape, next, given, job.compute())};
}

WhatIfRanking what_if_ranking(const HeadGroup<float>& group, const EvictionPlan& plan,
                              const WhatIfLayer* layer, const GivenScores& given, JobControl& job) {
  const LayerScores none(plan.runs.size());
  // Down to nothing: the path then serves every budget.
  return {head_ranking(group, plan, layer != nullptr ? layer->scores : none, given, 0, job.compute())};
}

WhatIfImportance what_if_importance(const HeadGroup<float>& group, JobControl& job,
                                    const HeadGroup<float>* readers) {
  if (readers == nullptr || readers == &group) return {future_importance(group, job.compute())};
  return {future_importance(*readers, job.compute()), future_importance(group, job.compute())};
}

namespace {

/// Figures of the first case on window or future rows, with its vectors where there are `losses`.
WhatIf::RowFigures row_figures(const HeadGroup<float>& group, RowSet set, RowRange rows,
                               const LossRows& losses, const OutputChanges<float>& changes,
                               Workers& workers) {
  if (rows.count() == 0) return {0, kNone, kNone, kNone};
  const double change_sq = changes.change_sq.front();
  return {rows.count(), changes.full_sq, change_sq, relative_error(change_sq, changes.full_sq),
          predicted_loss(group, losses, set, rows, changes, workers)};
}

}  // namespace

KeptSet painted(KeptSet kept, const std::vector<MarkedToken>& marks, const Vector<double>& scores,
                Index sinks, Index recent) {
  const Index l = std::ssize(kept);
  std::vector<std::uint8_t> stays(kept.size(), 0);  // what no pinned token drives out
  std::fill_n(stays.begin(), std::min(sinks, l), std::uint8_t{1});
  std::fill_n(stays.rbegin(), std::min(recent, l), std::uint8_t{1});
  Index driven_out = 0;
  for (const auto& [token, mark] : marks) {
    if (token >= l) continue;
    stays[token] = 1;
    driven_out += mark == PaintMark::pin && kept[token] == 0 ? 1 : 0;
    kept[token] = mark == PaintMark::evict ? 0 : 1;
  }
  if (scores.size() != l) return kept;
  std::vector<Index> others;
  for (const Index p : positions(kept))
    if (stays[p] == 0) others.push_back(p);
  std::sort(others.begin(), others.end(),
            [&](Index a, Index b) { return scores[a] != scores[b] ? scores[a] < scores[b] : a > b; });
  others.resize(std::min<std::size_t>(others.size(), static_cast<std::size_t>(driven_out)));
  for (const Index p : others) kept[p] = 0;
  return kept;
}

KeptSet what_if_kept(const HeadGroup<float>& readers, const EvictionPlan& all, const WhatIfRanking& ranking,
                     const std::vector<MarkedToken>& marks, JobControl& job) {
  const EvictionPlan& plan = all.of(readers);
  const EvictionCase& which = plan.cases.front();
  KeptSet kept = prompt_kept(readers, plan, which, ranking.ranking, job.compute());
  if (marks.empty()) return kept;
  const EvictionRule& rule = plan.runs[*which.run].rules[which.budget];
  return painted(std::move(kept), marks, what_if_scores(plan, ranking).scores, rule.sinks, rule.recent);
}

WhatIf what_if(const HeadGroup<float>& group, const EvictionPlan& plan, const WhatIfRanking& ranking,
               const WhatIfImportance& importance, JobControl& job, const std::vector<MarkedToken>& marks,
               const HeadGroup<float>* readers) {
  const HeadGroup<float>& all = readers != nullptr ? *readers : group;
  EvictionPlan by_hand;
  std::vector<KeptSet> given;
  if (!marks.empty()) {
    by_hand = plan.of(group);
    EvictionCase& which = by_hand.cases.front();
    given = {what_if_kept(all, plan, ranking, marks, job)};
    which.run.reset();
    which.budget = 0;
    which.kept.reset();
  }
  const EvictionPlan& asked = marks.empty() ? plan : by_hand;
  HeadEvictions<float> head = head_evictions(
      group, asked, head_caches(all, asked, ranking.ranking, given, job.compute()),
      {importance.importance, importance.own ? &*importance.own : nullptr}, plan.losses.any(), job.compute());
  CaseFigures& found = head.cases.front();
  WhatIf result;
  result.kept = std::move(found.kept);
  result.tokens = static_cast<Index>(found[EvictionColumns::tokens]);
  const auto on = [&](RowSet set, RowRange rows, const OutputChanges<float>& changes) {
    return row_figures(group, set, rows, plan.losses, changes, job.workers());
  };
  result.window = on(RowSet::window, plan.window, head.outputs.window);
  result.future = on(RowSet::future, plan.future, head.outputs.future);
  result.eviction_loss = found[EvictionColumns::eviction_loss];
  result.optimality_gap = found[EvictionColumns::optimality_gap];
  result.oracle_recall = found[EvictionColumns::oracle_recall];
  result.bytes = found[EvictionColumns::bytes];
  result.prompt_bytes = static_cast<double>((plan.reserves ? group.l : group.held()) * kElementBytes *
                                            (group.d() + group.d_v()));
  for (const OptionText& note : plan.notes) result.notes.push_back(note.plain());
  return result;
}

WhatIfScores what_if_scores(const EvictionPlan& plan, const WhatIfRanking& ranking) {
  const EvictionCase& which = plan.cases.front();
  const EvictionRule& rule = plan.runs[*which.run].rules[which.budget];
  const Vector<double>& scores = ranking.ranking.scores[*which.run];
  if (scores.size() == 0 || rule.two_stages || rule.block > 0 || which.phase.kind == Phase::Kind::blockwise)
    return {};
  return {pooled(scores, rule.pool, rule.pool_window)};
}

KeptDifference kept_difference(const KeptSet& first, const KeptSet& second) {
  KeptDifference difference;
  for (std::size_t p = 0; p < std::min(first.size(), second.size()); ++p) {
    const bool a = first[p] != 0, b = second[p] != 0;
    difference.both += a && b ? 1 : 0;
    difference.only_first += a && !b ? 1 : 0;
    difference.only_second += !a && b ? 1 : 0;
  }
  return difference;
}

std::size_t bytes_of(const WhatIfRanking& ranking) {
  const HeadRanking& head = ranking.ranking;
  std::size_t bytes = sizeof(ranking) + bytes_in(head.scores) + bytes_in(head.weights);
  for (const auto& [by, path] : head.paths) bytes += path.evicted.size() * (sizeof(Index) + sizeof(double));
  if (head.wide) bytes += bytes_of(*head.wide);
  return bytes;
}

namespace {

/// Positions of the rows that are fitted to.
Index reference_positions(const ReferenceOptions& reference, const DumpShape& shape) {
  Index there = 0;
  switch (reference.kind) {
    case Reference::window:
      there = window_rows(shape.l, shape.first_query(), reference.window).count();
      break;
    case Reference::shifted:
      there = shape.l - shape.first_query();
      break;
    case Reference::repeat:
      there = shape.R_ref;
      break;
  }
  return std::min(there, reference.most);
}

const ErrorSplit* split_on(const WhatIf& what_if, RowSet rows) {
  if (!what_if.compensated || rows == RowSet::none) return nullptr;
  const std::optional<ErrorSplit>& split = rows == RowSet::window   ? what_if.compensated->split_window
                                           : rows == RowSet::future ? what_if.compensated->split_future
                                                                    : what_if.compensated->split_reference;
  return split ? &*split : nullptr;
}

}  // namespace

CompensationPlan what_if_compensation(const WhatIfSettings& settings, const Dump& dump,
                                      const EvictionPlan& evictions, const UserScore* score) {
  CompensationPlan plan = compensation_plan(dump, evict_options_of(settings, score), evictions);
  if (!plan.left_out.empty())
    throw OptionError(option_text("{}: {}", evict_option::compensate, plan.left_out.front().why));
  return plan;
}

Key rows_key(const CompensationPlan& plan) {
  Key key(plan.window.begin, plan.window.end, plan.future.begin, plan.future.end, plan.fits(), plan.merges());
  if (plan.fits()) key = {key, plan.reference.kind, plan.reference.most};
  if (plan.fits() || plan.merges()) key = {key, plan.reference.window};
  return key;
}

std::size_t rows_bytes(const CompensationPlan& plan, const DumpShape& shape) {
  const Index positions = plan.window.count() + plan.future.count() +
                          (plan.fits() ? reference_positions(plan.reference, shape) : 0);
  return static_cast<std::size_t>(shape.group() * positions * shape.l) * sizeof(float) +
         (plan.merges() ? head_group_bytes(shape, shape.d_model > 0, sizeof(double)) : 0);
}

WhatIfRows what_if_rows(std::shared_ptr<const HeadGroup<float>> group, const CompensationPlan& plan,
                        JobControl& job, std::shared_ptr<const HeadGroup<float>> readers) {
  HeadCompensation<float> of_head(*group, plan, job.workers(), readers.get());
  return {std::move(group), std::move(readers), std::move(of_head)};
}

WhatIf what_if_compensated(const EvictionPlan& evictions, const CompensationPlan& plan,
                           const WhatIfRows& rows, const WhatIf& plain, JobControl& job) {
  const HeadGroup<float>& group = *rows.group;
  const Semantics semantics = semantics_of(evictions, evictions.cases.front());
  CompensatedHead head = std::move(rows.of_head.of(plain.kept, plan.cases, semantics, job.workers()).front());
  const CaseOutputs<float> outputs = cache_outputs<float>(
      group, plan.window, plan.future, 1, [&](std::size_t) { return compensated_cache(group, head.held); },
      plan.losses.any(), job.compute());
  WhatIf result = plain;
  result.compensated = {
      plan.cases.front().method,       plain.window, plain.future, head.window, head.future, head.reference,
      rows.of_head.reference_full_sq()};
  const auto on = [&](RowSet set, RowRange range, const OutputChanges<float>& changes) {
    return row_figures(group, set, range, plan.losses, changes, job.workers());
  };
  result.window = on(RowSet::window, plan.window, outputs.window);
  result.future = on(RowSet::future, plan.future, outputs.future);
  result.bytes = compensated_bytes(head.held, group.d());
  for (const OptionText& note : plan.notes) result.notes.push_back(note.plain());
  return result;
}

std::size_t bytes_of(const WhatIfRows& rows) { return rows.of_head.bytes() + bytes_of(*rows.group); }

double split_figure(const WhatIf& what_if, RowSet rows, double ErrorSplit::*sum) {
  const ErrorSplit* split = split_on(what_if, rows);
  if (split == nullptr) return kNone;
  const double full_sq = rows == RowSet::window   ? what_if.window.full_sq
                         : rows == RowSet::future ? what_if.future.full_sq
                                                  : what_if.compensated->reference_full_sq;
  return relative_error(split->*sum, full_sq);
}

std::optional<ErrorSteps> error_steps(const WhatIf& what_if, RowSet rows) {
  if (split_on(what_if, rows) == nullptr) return std::nullopt;
  const auto figure = [&](double ErrorSplit::*sum) { return split_figure(what_if, rows, sum); };
  ErrorSteps steps{figure(&ErrorSplit::selection), figure(&ErrorSplit::weighted),
                   figure(&ErrorSplit::change_sq), figure(&ErrorSplit::bound), figure(&ErrorSplit::plain)};
  if (rows == RowSet::reference) return steps;
  // The very numbers that stand beside it.
  const bool window = rows == RowSet::window;
  steps.error = (window ? what_if.window : what_if.future).error;
  steps.plain = (window ? what_if.compensated->plain_window : what_if.compensated->plain_future).error;
  return steps;
}

}  // namespace kvreplay::viewer
