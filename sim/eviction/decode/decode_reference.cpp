#include "sim/attention.hpp"
#include "sim/eviction/decode/decode.hpp"
#include "sim/head_group.hpp"
#include "sim/tokens/token_readings.hpp"
#include "sim/tokens/triattention.hpp"

#include <algorithm>
#include <cmath>
#include <map>

// Decoding with evictions (POLICIES.md, Phases) from its definition: the cache is a list of positions, and
// every row of scores that a token ever got is kept.

namespace kvreplay {
namespace {

using Group = HeadGroup<double>;
using M = TokenMetric;

/// Everything one run knows: the cache and the rows of scores, one number per query head or one in all.
struct Run {
  const Group& group;
  const EvictionRule& rule;
  std::optional<Index> window;
  std::vector<Index> cache;
  std::map<Index, std::vector<Vector<double>>> rows;  // by position, oldest first
  std::map<Index, Vector<double>> prompt;             // by position: the prompt's sums, where they count
  Index prompt_rows = 0;
  Index sinks_end = 0;  // positions from here on are not sinks

  /// True if no row at `next` or later sees p.
  bool hidden_from(Index next, Index p) const {
    if (!group.rule.sliding_window) return false;
    const auto at = [&](Index row) { return group.position.empty() ? row : group.position[row]; };
    return at(p) <= at(next - 1) + 1 - *group.rule.sliding_window;
  }
  bool caote() const { return rule.metric == M::caote || rule.metric == M::fastcaote; }
  bool by_rows() const { return rule.metric && kTokenMetrics[*rule.metric].rows != MetricRows::none; }

  TokenOptions scores_of(Index rows_asked) const {
    TokenOptions asked;
    asked.window = rows_asked;
    asked.per_query_head = caote();
    asked.metrics = {caote() ? M::attn : *rule.metric};
    return asked;
  }

  /// The sum of what a token has been given, and the number of rows in it.
  Vector<double> sum_of(Index p, Index& counted) const {
    Vector<double> sum = Vector<double>::Zero(caote() ? group.G() : 1);
    counted = 0;
    if (!window && p < group.l) {
      if (prompt.contains(p)) sum += prompt.at(p);
      counted += std::min(prompt_rows, group.l - p);
    }
    const auto found = rows.find(p);
    if (found == rows.end()) return sum;
    const Index there = std::ssize(found->second);
    for (Index r = window ? std::max<Index>(there - *window, 0) : 0; r < there; ++r, ++counted)
      sum += found->second[r];
    return sum;
  }

  Vector<double> ranking() const {
    const Index n = std::ssize(cache);
    Vector<double> score(n), counted(n);
    Matrix<double> sums(caote() ? group.G() : 1, n);
    for (Index c = 0; c < n; ++c) {
      Index count = 0;
      sums.col(c) = sum_of(cache[c], count);
      counted[c] = static_cast<double>(count);
      score[c] = rule.seed ? lot_of(rule, group.layer, group.kv_head, cache.back() + 1, cache[c])
                           : static_cast<double>(cache[c]);  // by position
    }
    if (caote()) {
      const HeadMatrix<double> values = cache_group(group, cache, 0).v;
      score.setZero();
      for (Index g = 0; g < group.G(); ++g) {
        const CaoteScores scores = caote_reference(sums.row(g).transpose(), values);
        score += rule.metric == M::caote ? scores.caote : scores.fastcaote;
      }
    } else if (by_rows()) {
      score = sums.row(0).transpose();
    } else if (rule.metric) {
      TokenOptions asked = scores_of(1);
      score = token_metrics_reference(cache_group(group, cache, 0), asked)[*rule.metric].row(0).transpose();
    }
    if (rule.per_visible_row)
      for (Index c = 0; c < n; ++c)
        if (counted[c] > 0.0) score[c] /= counted[c];
    return score;
  }

  /// Scores of a rule at intervals, from the queries of the last `rows` tokens.
  Vector<double> ranking_at_interval(const EvictionRule& within, Index rows) const {
    const Index n = std::ssize(cache);
    if (rule.seed) return ranking();
    if (!rule.metric) return Vector<double>::LinSpaced(n, 0, static_cast<double>(n - 1));
    if (rule.metric == M::triattention) return triattention_reference(group, cache, cache.back() + 1);
    const Group cached = cache_group(group, cache, rows);
    Vector<double> score =
        token_metrics_reference(cached, {.window = within.window, .metrics = {*rule.metric}})[*rule.metric]
            .row(0)
            .transpose();
    for (Index c = 0; c < n && rule.per_visible_row && within.window > 0; ++c)
      score[c] /= static_cast<double>(std::min(within.window, n - c));
    return score;
  }

  void cut(Index budget, const DecodeOptions& options) {
    const Index next = cache.back() + 1;
    std::erase_if(cache, [&](Index p) { return hidden_from(next, p); });
    const Index n = std::ssize(cache);
    if (n == 0) return;
    if (options.interval > 0 && (cache.back() + 1 - group.l) % options.interval != 0) return;
    if (n <= budget) return;
    if (options.interval > 0) {
      const Index rows = std::clamp<Index>(next - group.first_query(), 0, std::min(options.interval, n));
      EvictionRule within = rule;
      within.window = within.pool_window = std::min(rule.window, rows);
      const KeptSet kept = keep_by(within, ranking_at_interval(within, rows), budget);
      std::vector<Index> left;
      for (const Index c : positions(kept)) left.push_back(cache[c]);
      cache = left;
      return;
    }
    if (options.append_only) {
      if (largest(ranking(), budget).back() == 0) cache.pop_back();
      return;
    }
    EvictionRule plain = rule;
    plain.per_visible_row = false;
    plain.pool = {};
    plain.sinks = std::ranges::count_if(cache, [&](Index p) { return p < sinks_end; });
    const KeptSet kept = keep_by(plain, ranking(), budget);
    std::vector<Index> left;
    for (const Index c : positions(kept)) left.push_back(cache[c]);
    cache = left;
  }
};

}  // namespace

DecodeReplay<double> decode_replay_reference(const Group& group, const EvictionRule& rule,
                                             const KeptSet& start, Index budget,
                                             const DecodeOptions& options) {
  Run run{group, rule, options.window, positions(start), {}, {}, 0};
  if (!run.window && rule.policy.base == EvictionBase::tova) run.window = 1;
  std::erase_if(run.cache, [&](Index p) { return run.hidden_from(group.l, p); });
  for (Index p = 0, sinks = std::min(rule.sinks, budget); sinks > 0; ++p)
    if (p >= group.l || (start[p] != 0 && !run.hidden_from(group.l, p))) {
      --sinks;
      run.sinks_end = p + 1;
    }
  run.prompt_rows = window_rows(group.l, group.first_query(), rule.window).count();
  if (run.by_rows() && !run.window && options.interval == 0) {
    const TokenOptions asked = run.scores_of(rule.window);
    const TokenMetrics scores = token_metrics_reference(group, asked);
    for (const Index p : run.cache) run.prompt[p] = scores[run.caote() ? M::attn : *rule.metric].col(p);
  }

  const Index first = std::max(group.l, group.first_query());
  const Index steps = std::max<Index>(group.T_all() - first, 0);
  DecodeReplay<double> replay;
  replay.first_step = first;
  replay.change.assign(group.G(), Matrix<double>::Zero(steps, group.d_v()));
  for (Index i = group.l; i < group.T_all(); ++i) {
    run.cache.push_back(i);
    if (i >= first) {
      const Group cached = cache_group(group, run.cache, 1);
      double change_sq = 0.0, full_sq = 0.0;
      for (Index g = 0; g < group.G(); ++g) {
        const Vector<double> full = attention_output(group, g, i);
        const Vector<double> change = attention_output(cached, g, cached.T_all() - 1) - full;
        replay.change[g].row(i - first) = change.transpose();
        change_sq += change.squaredNorm();
        full_sq += full.squaredNorm();
      }
      replay.change_sq.push_back(change_sq);
      replay.full_sq.push_back(full_sq);
      Matrix<double> row = Matrix<double>::Zero(1, cached.l);  // counted even where nothing is summed
      if (run.by_rows() && options.interval == 0)
        row = token_metrics_reference(cached, run.scores_of(1))[run.caote() ? M::attn : *rule.metric];
      for (Index c = 0; c < cached.l; ++c) run.rows[run.cache[c]].push_back(row.col(c));
    }
    const std::vector<Index> before = run.cache;
    run.cut(budget, options);
    for (const Index p : before)
      if (std::find(run.cache.begin(), run.cache.end(), p) == run.cache.end())
        replay.left.push_back({i - first, p});
  }
  replay.kept.assign(group.l, 0);
  for (const Index p : run.cache)
    if (p < group.l) replay.kept[p] = 1;
  replay.cache_size = std::ssize(run.cache);
  return replay;
}

}  // namespace kvreplay
