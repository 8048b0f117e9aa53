#include "analysis/conform/reading.hpp"

#include "analysis/budgets/budget_plan.hpp"
#include "analysis/eviction/head_evictions.hpp"
#include "analysis/measure/case_outputs.hpp"
#include "sim/gram_sums.hpp"
#include "sim/rotation.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvreplay::conform {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// What a rounded logit, weight, sum and mean may add up to, in roundings.
constexpr double kRoundings = 8;

bool ranks_once(const EvictionRule& rule) {
  return rule.block == 0 && !rule.two_stages && rule.chunk_ends.empty() && !rule.threshold;
}

/// [l]: the sum over the rows at or after each token of the logits that they give it.
Vector<double> logit_sums(const HeadGroup<double>& group, Index window) {
  const RowRange rows = window_rows(group.l, group.first_query(), window);
  Vector<double> sums = Vector<double>::Zero(group.l);
  for (Index g = 0; g < group.G(); ++g) {
    Vector<double> later = Vector<double>::Zero(group.d());  // the sum of the rows from p on
    for (Index p = group.l - 1; p >= 0; --p) {
      if (p >= rows.begin) later += group.q[g].row(p - group.first_query()).transpose();
      sums[p] += group.rule.scale * group.k.row(p).dot(later);
    }
  }
  return sums;
}

void undo_rotation(const Rope& rope, Index first, HeadMatrix<double>& rows) {
  for (Index r = 0; r < rows.rows(); ++r) rotate_by(rope, -(first + r), rows.row(r).data());
}

KeptSet reversed(KeptSet kept) {
  std::ranges::reverse(kept);
  return kept;
}

/// What keep_by() keeps of scores that are pooled already, equal ones from the back.
KeptSet keep_later_first(EvictionRule rule, const Vector<double>& scores, Index budget,
                         const Vector<double>& weights) {
  std::swap(rule.sinks, rule.recent);
  return reversed(keep_by(rule, scores.reverse(), budget, weights.reverse()));
}

KeptSet shifted(const KeptSet& kept, Index by) {
  const Index l = std::ssize(kept);
  KeptSet moved(kept.size(), 0);
  for (Index p = 0; p < l; ++p)
    if (kept[p] != 0) moved[std::clamp<Index>(p + by, 0, l - 1)] = 1;
  return moved;
}

}  // namespace

double rounding_of(Dtype numbers) {
  switch (numbers) {
    case Dtype::f64:
      return 0x1p-48;
    case Dtype::f32:
      return 0x1p-20;
    case Dtype::f16:
      return 0x1p-11;
    case Dtype::bf16:
      return 0x1p-8;
  }
  return 0;
}

Reading reading_of(const ReadingSetting& setting, const Policy& policy, Semantics semantics) {
  Reading reading;
  const Index kept = setting.budget.kept(setting.l, semantics);
  reading.budget = tokens_within(policy, kept, setting.l);
  reading.rule =
      rule_of(policy, semantics, setting.overrides, setting.l, reading.budget, setting.projects_values);
  reading.sigma = setting.budget.ratio(setting.l);
  reading.divides = semantics;
  return reading;
}

// Kept sets of readings.

LayerCaches::LayerCaches(const Dump& dump, Index layer, bool per_query_head,
                         const std::vector<GivenArray<double>>& given, const Compute& compute)
    : compute_(compute) {
  const DumpShape& shape = dump.shape();
  for (Index g = 0; g < shape.n_kv; ++g) {
    auto group = std::make_shared<const HeadGroup<double>>(load_readers<double>(dump, layer, g));
    each_part(*group, per_query_head, [&](Index part, const HeadGroup<double>& mine) {
      given_.push_back(scores_of_head(given, layer * shape.n_kv + g, shape.l, part));
      caches_.push_back(per_query_head ? std::make_shared<const HeadGroup<double>>(mine) : group);
    });
  }
}

HeadGroup<double> LayerCaches::changed(const Reading& reading, Index c) const {
  HeadGroup<double> group = *caches_[c];
  if (!reading.scaled) group.rule.scale = 1;
  if (!reading.own_values) group.v = caches_[(c + 1) % count()]->v;
  if (reading.heads == QueryHeads::dealt)
    for (Index g = 0; g < group.G(); ++g) {
      const Index head = c + g * count();
      group.q[g] = caches_[head / group.G()]->q[head % group.G()];
    }
  if (reading.unrotated != Unrotated::none && group.rope) {
    undo_rotation(*group.rope, 0, group.k);
    if (reading.unrotated == Unrotated::both)
      for (HeadMatrix<double>& q : group.q) undo_rotation(*group.rope, group.first_query(), q);
  }
  return group;
}

Vector<double> LayerCaches::score(const Reading& reading, Index c) const {
  const HeadGroup<double> group = changed(reading, c);
  const EvictionRule& rule = reading.rule;
  const auto of = [&](const HeadGroup<double>& one) -> Vector<double> {
    Vector<double> scores = reading.softmax ? rule_scores(one, std::span(&rule, 1), given_[c], compute_)[0]
                                            : logit_sums(one, rule.window);
    return reading.pools_heads ? pooled(scores, rule.pool, rule.pool_window) : scores;
  };
  const bool sum = reading.heads == QueryHeads::sum || reading.heads == QueryHeads::dealt;
  if (group.G() == 1 || (sum && !reading.pools_heads)) return of(group);
  Vector<double> joined = of(query_head_group(group, 0));
  for (Index g = 1; g < group.G() && reading.heads != QueryHeads::first; ++g) {
    const Vector<double> other = of(query_head_group(group, g));
    joined = sum ? Vector<double>(joined + other) : Vector<double>(joined.cwiseMax(other));
  }
  return joined;
}

const LayerCaches::Scores& LayerCaches::scores(const Reading& reading) {
  const EvictionRule& rule = reading.rule;
  std::string recipe = fmt::format(
      "{} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", rule.metric ? static_cast<int>(*rule.metric) : -1,
      rule.given ? static_cast<int>(*rule.given) : -1, static_cast<int>(rule.policy.base), rule.window,
      rule.per_visible_row, rule.two_stages, rule.expected.epsilon, rule.expected.n_sink,
      rule.expected.n_future, rule.expected.project_values, static_cast<int>(reading.heads),
      static_cast<int>(reading.unrotated), reading.scaled, reading.softmax, reading.own_values);
  if (reading.pools_heads)
    recipe += fmt::format(" {} {} {}", static_cast<int>(rule.pool.kind), rule.pool.width, rule.pool_window);
  const auto [at, fresh] = scores_.try_emplace(recipe, static_cast<std::size_t>(count()));
  Scores& formed = at->second;
  if (fresh) compute_.workers.parallel_for(count(), [&](std::ptrdiff_t c) { formed[c] = score(reading, c); });
  return formed;
}

double LayerCaches::largest_logit(Index window, Index c) {
  constexpr Index kMostRows = 64;  // of many rows the last ones stand for all
  const auto [at, fresh] = largest_logit_.try_emplace({std::min(window, kMostRows), c}, 0);
  if (fresh) {
    const HeadGroup<double>& group = *caches_[c];
    const RowRange rows = window_rows(group.l, group.first_query(), std::min(window, kMostRows));
    for (Index g = 0; g < group.G() && rows.count() > 0; ++g)
      at->second =
          std::max(at->second,
                   row_products<double>(group.q[g].middleRows(rows.begin - group.first_query(), rows.count()),
                                        group.k.topRows(group.l))
                           .cwiseAbs()
                           .maxCoeff() *
                       group.rule.scale);
  }
  return at->second;
}

std::vector<Index> LayerCaches::budgets(const Reading& reading, const Scores& pooled, Index place,
                                        Index places) const {
  std::vector<Index> all(static_cast<std::size_t>(count()), reading.budget);
  if (reading.given_budgets) {
    const auto begin = reading.given_budgets->begin() + place * count();
    return {begin, begin + count()};
  }
  if (!reading.division) return all;
  const bool by_layer = reading.division->method == BudgetMethod::pyramid;
  const Index l = caches_.front()->l, pinned = std::min(reading.rule.sinks + reading.rule.recent, l);
  const BudgetFrame frame = budget_frame(by_layer ? places : 1, count(), l, reading.sigma, pinned);
  std::vector<double> ordered;
  for (const Vector<double>& scores : pooled) {
    if (!kBudgetMethods[reading.division->method].needs_scores) break;
    const RankedTokens ranked =
        ranked_tokens(reading.rule, reading.divided_by_negated ? Vector<double>(-scores) : scores);
    ordered.insert(ordered.end(), ranked.scores.begin(), ranked.scores.end());
  }
  const Budgets shares = divided_by_rank(*reading.division, {.frame = frame,
                                                             .semantics = reading.divides,
                                                             .pinned = pinned,
                                                             .window = reading.rule.window,
                                                             .scores = ordered});
  const auto begin = shares.begin() + (by_layer ? place * count() : 0);
  return {begin, begin + count()};
}

std::vector<ReadCache> LayerCaches::read(const Reading& asked, Index place, Index places) {
  Reading reading = asked;
  EvictionRule& rule = reading.rule;
  std::vector<ReadCache> all(static_cast<std::size_t>(count()));
  if (rule.block > 0) {
    compute_.workers.parallel_for(count(), [&](std::ptrdiff_t c) {
      all[c].kept = shifted(evict_in_blocks(changed(reading, c), rule, reading.budget, rule.block, compute_),
                            reading.shift);
    });
    return all;
  }
  Scores ranks = scores(reading);
  if (rule.shared_by_layer) {
    Vector<double> sum = Vector<double>::Zero(ranks.front().size());
    for (const Vector<double>& one : ranks) sum += one;
    std::ranges::fill(ranks, sum);
  }
  for (Vector<double>& rank : ranks) {
    if (!reading.pools_heads) rank = pooled(rank, rule.pool, rule.pool_window);
    if (reading.negated) rank = -rank;
    if (!reading.pins_negated) continue;
    const double least = rank.minCoeff() - 1;
    rank.head(std::min(rule.sinks, rank.size())).setConstant(least);
    rank.tail(std::min(rule.recent, rank.size())).setConstant(least);
  }
  for (Vector<double>& rank : ranks)
    if (reading.never > 0) rank.head(std::min(reading.never, rank.size())).setConstant(rank.minCoeff() - 1);
  if (reading.pins_negated) rule.sinks = rule.recent = 0;
  rule.pool = {};
  const std::vector<Index> keep = budgets(reading, ranks, place, places);
  const bool ranked = ranks_once(rule) && (rule.metric || rule.given);
  const TokenMetricFacts* metric = rule.metric ? &kTokenMetrics[*rule.metric] : nullptr;
  const double rounding = rounding_of(reading.numbers);
  std::vector<double> logit(all.size(), 0);
  for (Index c = 0; ranked && metric != nullptr && metric->rows != MetricRows::none && c < count(); ++c)
    logit[c] = largest_logit(rule.window, c);
  if (rule.shared_by_layer) std::ranges::fill(logit, *std::ranges::max_element(logit));
  compute_.workers.parallel_for(count(), [&](std::ptrdiff_t c) {
    const HeadGroup<double>& group = *caches_[c];
    const Vector<double> weights = second_weights(group, rule, compute_.workers);
    const auto kept_by = [&] {
      return reading.later_first ? keep_later_first(rule, ranks[c], keep[c], weights)
                                 : keep_by(rule, ranks[c], keep[c], weights);
    };
    ReadCache& one = all[c];
    one.kept = kept_by();
    one.shares_budget = reading.division && reading.division->method == BudgetMethod::ada;
    one.pinned_before = std::min(rule.sinks, group.l);
    one.pinned_from = std::max(one.pinned_before, group.l - rule.recent);
    const Index pinned = one.pinned_before + group.l - one.pinned_from;
    one.pins_tie = keep[c] < pinned && 2 * pinned <= group.l;
    if (ranked) {
      one.scores = ranks[c];
      if (rule.page > 1) {
        const Vector<double> pages = page_scores(ranks[c], rule.page, rule.page_by);
        for (Index p = 0; p < group.l; ++p) one.scores[p] = pages[p / rule.page];
        one.page = rule.page;
      }
      one.lowest_kept = kInfinity, one.highest_evicted = -kInfinity;
      for (Index p = one.pinned_before; p < one.pinned_from; ++p)
        if (one.kept[p] != 0)
          one.lowest_kept = std::min(one.lowest_kept, one.scores[p]);
        else
          one.highest_evicted = std::max(one.highest_evicted, one.scores[p]);
      one.relative = rounding * kRoundings;
      if (metric != nullptr && metric->id == TokenMetric::keydiff) one.absolute = one.relative;  // a cosine
      // A rounded logit changes a weight by as much relative to it, and a square twice.
      one.relative +=
          2 * rounding * (metric == nullptr || metric->unit == MetricUnit::weight ? 1 : 2) * logit[c];
      // A rank among 128, moved by tokens that are equal.
      if (metric != nullptr && metric->id == TokenMetric::lagkv) one.absolute = 128 * rounding;
      // What is left of small weights in float16.
      if (reading.numbers == Dtype::f16 && metric != nullptr) {
        const Index heads = rule.shared_by_layer ? count() * group.G() : group.G();
        if (metric->unit == MetricUnit::weight)
          one.absolute += 0x1p-24 * static_cast<double>(std::min(rule.window, group.T_q()) * heads);
        if (metric->id == TokenMetric::expected_attention)  // of a mean over heads, times norms
          one.absolute += 0x1p-24 * (1 + group.v.topRows(group.l).rowwise().norm().maxCoeff());
      }
    }
    one.kept = shifted(one.kept, reading.shift);
    if (reading.shift != 0) one.scores.resize(0);  // they are those of other places
  });
  if (reading.division && reading.division->method == BudgetMethod::ada) {
    // One cut through all heads.
    double lowest = kInfinity, highest = -kInfinity;
    for (const ReadCache& one : all) {
      lowest = std::min(lowest, one.lowest_kept);
      highest = std::max(highest, one.highest_evicted);
    }
    for (ReadCache& one : all)
      one.lowest_kept = std::max(lowest, std::min(one.lowest_kept, highest)), one.highest_evicted = highest;
  }
  return all;
}

KeptSet LayerCaches::oracle(Index c, Index keep) const {
  const Vector<double> importance = future_importance(*caches_[c], compute_);
  return importance.size() == 0 ? KeptSet() : largest(importance, keep);
}

Mismatch mismatch(const ReadCache& meant, const KeptSet& found) {
  Mismatch result;
  const auto near = [&](double score, double cut) {
    return meant.relative * std::max(std::abs(score), std::abs(cut)) + meant.absolute;
  };
  // A page of which some is kept was not chosen as one.
  const auto is_whole = [&](Index p) {
    const Index begin = p / meant.page * meant.page, end = std::min(begin + meant.page, std::ssize(found));
    return std::all_of(found.begin() + begin, found.begin() + end,
                       [&](std::uint8_t kept) { return kept == found[p]; });
  };
  Index rounded = 0;  // tokens that tie though their scores are not the same
  for (Index p = 0; p < std::ssize(found); ++p) {
    if (found[p] == meant.kept[p]) continue;
    const bool extra = found[p] != 0,
               ranked = meant.scores.size() > 0 && p >= meant.pinned_before && p < meant.pinned_from;
    (extra ? result.extra : result.missing).push_back(p);
    const bool pinned = p < meant.pinned_before || p >= meant.pinned_from;
    const bool tied =
        (meant.pins_tie && pinned) ||
        (ranked && is_whole(p) &&
         (extra ? meant.scores[p] >= meant.lowest_kept - near(meant.scores[p], meant.lowest_kept)
                : meant.scores[p] <= meant.highest_evicted + near(meant.scores[p], meant.highest_evicted)));
    if (tied) {
      const double cut = extra ? meant.lowest_kept : meant.highest_evicted;
      rounded += ranked && meant.scores[p] != cut ? 1 : 0;
      continue;
    }
    ++result.apart;
    if (!result.first) result.first = p;
  }
  // Where most scores vanish in coarse numbers, all would be equal: so many that are not are no accident.
  constexpr Index kFewTies = 8, kTiesOf = 5;
  if (rounded > std::max(kFewTies, kvreplay::count(meant.kept) / kTiesOf)) {
    result.apart = result.count();
    if (!result.first) result.first = result.extra.empty() ? result.missing.front() : result.extra.front();
  }
  const Index more = std::abs(std::ssize(result.extra) - std::ssize(result.missing));
  if (!meant.shares_budget && more > result.apart) {
    result.apart = more;
    if (!result.first)
      result.first =
          result.extra.size() > result.missing.size() ? result.extra.front() : result.missing.front();
  }
  return result;
}

}  // namespace kvreplay::conform
