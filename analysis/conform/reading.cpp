#include "analysis/conform/reading.hpp"

#include "analysis/budgets/budget_plan.hpp"
#include "analysis/conform/rounding.hpp"
#include "analysis/eviction/head_evictions.hpp"
#include "analysis/measure/case_outputs.hpp"
#include "sim/gram_sums.hpp"
#include "sim/rotation.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <tuple>

namespace kvreplay::conform {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

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

/// Rotates each row further, by `times` times its own position.
void rotate(const Rope& rope, Index times, Index first, HeadMatrix<double>& rows) {
  for (Index r = 0; r < rows.rows() && times != 0; ++r)
    rotate_by(rope, times * (first + r), rows.row(r).data());
}

KeptSet reversed(KeptSet kept) {
  std::ranges::reverse(kept);
  return kept;
}

/// The kept set of keep_by() for scores that are pooled already; among equal scores later positions come
/// first.
KeptSet keep_later_first(EvictionRule rule, const Vector<double>& scores, Index budget,
                         const Vector<double>& weights) {
  std::swap(rule.sinks, rule.recent);
  return reversed(keep_by(rule, scores.reverse(), budget, weights.reverse()));
}

/// Gives every cache the set that was chosen for the cache `by` places further on, cyclically.
std::vector<ReadCache> turned(std::vector<ReadCache> all, Index by) {
  const Index n = std::ssize(all);
  std::rotate(all.begin(), all.begin() + (by % n + n) % n, all.end());
  return all;
}

KeptSet shifted(const KeptSet& kept, Index by) {
  const Index l = std::ssize(kept);
  KeptSet moved(kept.size(), 0);
  for (Index p = 0; p < l; ++p)
    if (kept[p] != 0) moved[std::clamp<Index>(p + by, 0, l - 1)] = 1;
  return moved;
}

/// [l]: zeros for the first `begin` positions, then `last`.
Vector<double> behind(Index begin, const Vector<double>& last) {
  Vector<double> all = Vector<double>::Zero(begin + last.size());
  all.tail(last.size()) = last;
  return all;
}

/// The n-th largest number, n from 1 on. -infinity if there are fewer; +infinity for n < 1.
double nth_largest(std::vector<double> numbers, Index n) {
  if (n > std::ssize(numbers)) return -kInfinity;
  if (n < 1) return kInfinity;
  std::ranges::nth_element(numbers, numbers.begin() + n - 1, std::greater{});
  return numbers[static_cast<std::size_t>(n - 1)];
}

/// Replaces the cuts of a layer's caches by one common cut, for caches that share a budget by score. `kept`:
/// the lowest kept score of each cache; `evicted`: the highest evicted one.
void share_cut(const std::vector<double*>& kept, const std::vector<double*>& evicted) {
  double lowest = kInfinity, highest = -kInfinity;
  for (const double* one : kept) lowest = std::min(lowest, *one);
  for (const double* one : evicted) highest = std::max(highest, *one);
  for (double* one : kept) *one = std::max(lowest, std::min(*one, highest));
  for (double* one : evicted) *one = highest;
}

}  // namespace

Reading reading_of(const ReadingSetting& setting, const Policy& policy, Semantics semantics) {
  Reading reading;
  const Index kept = std::min(setting.budget.kept(setting.l, semantics), setting.l);
  reading.budget = tokens_within(policy, kept, setting.l);
  reading.rule = rule_of(policy, semantics, setting.overrides, setting.l, reading.budget,
                         setting.projects_values, setting.first_held);
  // A budget above what the layer holds keeps all of it.
  reading.sigma = std::max(setting.budget.ratio(setting.l), 0.0);
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
  const Inputs& inputs = reading.inputs;
  HeadGroup<double> group = *caches_[c];
  const Index first = group.first_query();
  group.rule.scale = std::pow(group.rule.scale, static_cast<double>(inputs.scalings));
  if (inputs.values_on != 0) group.v = caches_[(c + inputs.values_on) % count()]->v;
  if (inputs.heads == QueryHeads::dealt)
    for (Index g = 0; g < group.G(); ++g) {
      const Index head = c + g * count();
      group.q[g] = caches_[head / group.G()]->q[head % group.G()];
    }
  if (group.rope) {
    rotate(*group.rope, inputs.key_turns - 1, 0, group.k);
    for (HeadMatrix<double>& q : group.q) rotate(*group.rope, inputs.query_turns - 1, first, q);
  }
  if (!inputs.causal && group.rule.causal) {
    group.rule.causal = false;
    group.k = Matrix<double>(group.k.topRows(group.l));
    group.v = Matrix<double>(group.v.topRows(group.l));
    for (HeadMatrix<double>& q : group.q) q = Matrix<double>(q.topRows(group.l - first));
  }
  return group;
}

Vector<double> LayerCaches::score(const Reading& reading, Index c) const {
  const HeadGroup<double> group = changed(reading, c);
  const EvictionRule& rule = reading.rule;
  const Inputs& inputs = reading.inputs;
  const auto of = [&](const HeadGroup<double>& one) -> Vector<double> {
    const Vector<double> all = inputs.softmax ? rule_scores(one, std::span(&rule, 1), given_[c], compute_)[0]
                                              : logit_sums(one, rule.window);
    const Vector<double> scores = all.tail(held());
    return inputs.pools_heads ? pooled(scores, rule.pool, rule.pool_window) : scores;
  };
  const bool sum = inputs.heads == QueryHeads::sum || inputs.heads == QueryHeads::dealt;
  if (group.G() == 1 || (sum && !inputs.pools_heads)) return of(group);
  Vector<double> joined = of(query_head_group(group, 0));
  for (Index g = 1; g < group.G() && inputs.heads != QueryHeads::first; ++g) {
    const Vector<double> other = of(query_head_group(group, g));
    joined = sum ? Vector<double>(joined + other) : Vector<double>(joined.cwiseMax(other));
  }
  return joined;
}

const LayerCaches::Scores& LayerCaches::scores(const Reading& reading) {
  const EvictionRule& rule = reading.rule;
  const Inputs& inputs = reading.inputs;
  std::string recipe = fmt::format(
      "{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", rule.metric ? static_cast<int>(*rule.metric) : -1,
      rule.given ? static_cast<int>(*rule.given) : -1, static_cast<int>(rule.policy.base), rule.window,
      rule.per_visible_row, rule.two_stages, rule.expected.epsilon, rule.expected.n_sink,
      rule.expected.n_future, rule.expected.project_values, static_cast<int>(inputs.heads), inputs.key_turns,
      inputs.query_turns, inputs.scalings, inputs.causal, inputs.softmax, inputs.values_on);
  if (inputs.pools_heads)
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

const Vector<double>& LayerCaches::deviation(Index window, int power, Index c) {
  const auto [at, fresh] = deviation_.try_emplace({window, power, c});
  if (fresh) at->second = attention_deviation(*caches_[c], window, power, compute_.workers).tail(held());
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
  const Index l = held(), pinned = std::min(reading.rule.sinks + reading.rule.recent, l);
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
  const Index first = first_held(), candidates = std::max<Index>(held() - reading.last_out, 0);
  std::vector<ReadCache> all(static_cast<std::size_t>(count()));
  if (rule.block > 0) {
    compute_.workers.parallel_for(count(), [&](std::ptrdiff_t c) {
      all[c].kept = shifted(evict_in_blocks(changed(reading, c), rule, reading.budget, rule.block, compute_),
                            reading.shift);
      std::fill_n(all[c].kept.begin(), first, std::uint8_t{0});
    });
    return turned(std::move(all), reading.heads_on);
  }
  const Scores& raw = scores(reading);
  Scores ranks = raw;
  if (rule.shared_by_layer) {
    Vector<double> sum = Vector<double>::Zero(ranks.front().size());
    for (const Vector<double>& one : ranks) sum += one;
    std::ranges::fill(ranks, sum);
  }
  for (Vector<double>& rank : ranks) {
    if (!reading.inputs.pools_heads) rank = pooled(rank, rule.pool, rule.pool_window);
    if (reading.negated) rank = -rank;
    const double least = rank.size() > 0 ? rank.minCoeff() - 1 : 0;
    if (reading.pins_negated) {
      rank.head(std::min(rule.sinks, rank.size())).setConstant(least);
      rank.tail(std::min(rule.recent, rank.size())).setConstant(least);
    }
    rank.head(std::min(reading.first_out, rank.size())).setConstant(least);
  }
  if (reading.pins_negated) rule.sinks = rule.recent = 0;
  rule.recent = std::max<Index>(rule.recent - reading.last_out, 0);
  rule.pool = {};
  const std::vector<Index> keep = budgets(reading, ranks, place, places);
  const bool ranked = ranks_once(rule) && (rule.metric || rule.given);
  compute_.workers.parallel_for(count(), [&](std::ptrdiff_t c) {
    const HeadGroup<double>& group = *caches_[c];
    Vector<double> weights = second_weights(group, rule, compute_.workers);
    if (weights.size() > 0) weights = Vector<double>(weights.segment(first, candidates));
    const Vector<double> rank = ranks[c].head(candidates);
    const Index budget = std::min(keep[c], candidates);
    ReadCache& one = all[c];
    const KeptSet kept = reading.later_first ? keep_later_first(rule, rank, budget, weights)
                                             : keep_by(rule, rank, budget, weights);
    one.kept.assign(static_cast<std::size_t>(group.l), 0);
    std::ranges::copy(kept, one.kept.begin() + first);
    one.shares_budget = reading.division && reading.division->method == BudgetMethod::ada;
    const Index sinks = std::min(rule.sinks, candidates);
    one.pinned_before = first + sinks;
    one.pinned_from = first + std::max(sinks, candidates - rule.recent);
    one.pins_tie = is_kvpress(reading.divides) && budget < sinks + first + candidates - one.pinned_from;
    if (ranked) {
      one.scores = behind(first, ranks[c]);
      if (rule.page > 1) {
        const Vector<double> pages = page_scores(rank, rule.page, rule.page_by);
        for (Index p = 0; p < candidates; ++p) one.scores[first + p] = pages[p / rule.page];
        one.page = rule.page;
      }
      one.lowest_kept = kInfinity, one.highest_evicted = -kInfinity;
      for (Index p = one.pinned_before; p < one.pinned_from; ++p)
        if (one.kept[p] != 0)
          one.lowest_kept = std::min(one.lowest_kept, one.scores[p]);
        else
          one.highest_evicted = std::max(one.highest_evicted, one.scores[p]);
    }
    one.kept = shifted(one.kept, reading.shift);
    if (reading.shift != 0) one.scores.resize(0);  // they are those of other places
  });
  if (all.front().shares_budget &&
      std::accumulate(keep.begin(), keep.end(), Index{0}) <
          count() * (held() - all.front().pinned_from + all.front().pinned_before))
    for (ReadCache& one : all) one.pins_tie = is_kvpress(reading.divides);
  if (ranked && reading.shift == 0) {
    // The bounds are computed on demand, for all caches at once: caches may share a ranking or a budget.
    const auto formed = std::make_shared<std::vector<ScoreBounds>>();
    const auto caches = std::make_shared<const std::vector<ReadCache>>(all);
    Reading as_read = reading;
    as_read.rule.pool = asked.rule.pool;
    for (Index c = 0; c < count(); ++c)
      all[c].bounds = [this, formed, caches, as_read, &raw, c]() -> const ScoreBounds& {
        if (formed->empty()) *formed = bounds(as_read, raw, *caches);
        return (*formed)[c];
      };
  }
  if (all.front().shares_budget) {
    std::vector<double*> kept, evicted;
    for (ReadCache& one : all) kept.push_back(&one.lowest_kept), evicted.push_back(&one.highest_evicted);
    share_cut(kept, evicted);
  }
  return turned(std::move(all), reading.heads_on);
}

/// `raw`: the scores before pooling. `all`: the kept sets of the reading, with the pooled scores.
std::vector<ScoreBounds> LayerCaches::bounds(const Reading& reading, const Scores& raw,
                                             const std::vector<ReadCache>& all) {
  const EvictionRule& rule = reading.rule;
  const int power = attention_power(rule);
  const bool looks_at_rows = rule.metric && kTokenMetrics[*rule.metric].rows != MetricRows::none;
  std::vector<Vector<double>> near;
  for (Index c = 0; c < count(); ++c)
    near.push_back(score_tolerance(
        *caches_[c], rule, raw[c], power > 0 ? deviation(rule.window, power, c) : Vector<double>(),
        power == 0 && looks_at_rows ? largest_logit(rule.window, c) : 0, reading.numbers));
  if (rule.shared_by_layer) {
    Vector<double> sum = Vector<double>::Zero(near.front().size());
    for (const Vector<double>& one : near) sum += one;
    std::ranges::fill(near, sum);
  }
  std::vector<ScoreBounds> found;
  for (Index c = 0; c < count(); ++c) {
    Vector<double> mine = pooled(near[c], rule.pool, rule.pool_window);
    if (rule.page > 1) {
      const Vector<double> pages = page_scores(mine, rule.page, rule.page_by);
      for (Index p = 0; p < mine.size(); ++p) mine[p] = pages[p / rule.page];
    }
    ScoreBounds one{behind(first_held(), mine)};
    std::vector<double> low, high;
    Index kept = 0;
    for (Index p = all[c].pinned_before; p < all[c].pinned_from; ++p) {
      low.push_back(all[c].scores[p] - one.near[p]);
      high.push_back(all[c].scores[p] + one.near[p]);
      kept += all[c].kept[p];
    }
    one.kept_from = nth_largest(std::move(low), kept);
    one.evicted_to = nth_largest(std::move(high), kept + 1);
    found.push_back(std::move(one));
  }
  if (all.front().shares_budget) {
    std::vector<double*> kept, evicted;
    for (ScoreBounds& one : found) kept.push_back(&one.kept_from), evicted.push_back(&one.evicted_to);
    share_cut(kept, evicted);
  }
  return found;
}

KeptSet LayerCaches::oracle(Index c, Index keep) const {
  const Vector<double> importance = future_importance(*caches_[c], compute_);
  if (importance.size() == 0) return {};
  KeptSet kept = largest(importance.tail(held()), keep);
  kept.insert(kept.begin(), static_cast<std::size_t>(first_held()), 0);
  return kept;
}

Mismatch mismatch(const ReadCache& meant, const KeptSet& found, bool with_rounding) {
  Mismatch result;
  if (meant.kept == found) return result;
  // A page of which some is kept was not chosen as one.
  const auto is_whole = [&](Index p) {
    const Index begin = p / meant.page * meant.page, end = std::min(begin + meant.page, std::ssize(found));
    return std::all_of(found.begin() + begin, found.begin() + end,
                       [&](std::uint8_t kept) { return kept == found[p]; });
  };
  const ScoreBounds* bounds = with_rounding && meant.bounds ? &meant.bounds() : nullptr;
  for (Index p = 0; p < std::ssize(found); ++p) {
    if (found[p] == meant.kept[p]) continue;
    const bool extra = found[p] != 0, pinned = p < meant.pinned_before || p >= meant.pinned_from,
               ranked = meant.bounds && !pinned && is_whole(p);
    (extra ? result.extra : result.missing).push_back(p);
    const bool equal = (meant.pins_tie && pinned) ||
                       (ranked && meant.scores[p] == (extra ? meant.lowest_kept : meant.highest_evicted));
    if (equal) continue;
    ++result.unequal;
    if (ranked && bounds != nullptr &&
        (extra ? meant.scores[p] + bounds->near[p] >= bounds->kept_from
               : meant.scores[p] - bounds->near[p] <= bounds->evicted_to))
      continue;
    ++result.apart;
    if (!result.first) result.first = p;
  }
  // Where most scores vanish in coarse numbers, all would be equal: so many that are not are no accident.
  constexpr Index kFewTies = 8, kTiesOf = 5;
  if (result.unequal - result.apart > std::max(kFewTies, kvreplay::count(meant.kept) / kTiesOf)) {
    result.apart = result.count();
    if (!result.first) result.first = result.extra.empty() ? result.missing.front() : result.extra.front();
  }
  const Index more = std::abs(std::ssize(result.extra) - std::ssize(result.missing));
  if (!meant.shares_budget) result.unequal = std::max(result.unequal, more);
  if (!meant.shares_budget && more > result.apart) {
    result.apart = more;
    if (!result.first)
      result.first =
          result.extra.size() > result.missing.size() ? result.extra.front() : result.missing.front();
  }
  return result;
}

}  // namespace kvreplay::conform
