#include "sim/eviction/prompt_eviction.hpp"

#include "sim/backend.hpp"
#include "sim/gradient_rows.hpp"
#include "sim/head_group.hpp"
#include "sim/overflow.hpp"
#include "sim/tokens/expected_attention.hpp"
#include "sim/tokens/keydiff.hpp"
#include "sim/tokens/row_norms.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <string>

namespace kvreplay {
namespace {

/// True if the rule takes the published form of Expected Attention rather than the token metric.
bool own_expected_attention(const EvictionRule& rule) {
  return rule.policy.start.value_or(rule.policy.base) == EvictionBase::expected_attention;
}

/// Divides by the number of the score's rows at or after each token.
template <class T>
void divide_by_rows(const HeadGroup<T>& group, const EvictionRule& rule, Vector<double>& scores) {
  RowRange window = window_rows(group.l, group.first_query(), rule.window);
  if (rule.metric && kTokenMetrics[*rule.metric].of_gradients)
    window = loss_rows(window, group.g_window.rows);
  const Index rows = window.count();
  if (rows == 0) return;
  for (Index p = 0; p < group.l; ++p) scores[p] /= static_cast<double>(std::min(rows, group.l - p));
}

/// Means over the rows and heads that a rule's scores are sums of.
template <class T>
void take_means(const HeadGroup<T>& group, const EvictionRule& rule, Vector<double>& scores) {
  if (!rule.metric || kTokenMetrics[*rule.metric].heads != OverHeads::sum) return;
  const Index rows =
      on_window(*rule.metric) ? window_rows(group.l, group.first_query(), rule.window).count() : 1;
  scores /= static_cast<double>(std::max<Index>(rows, 1) * group.G());
}

template <class T>
Vector<double> expected_attention(const HeadGroup<T>& group, const EvictionRule& rule, Workers& workers) {
  const Matrix<double> heads = expected_attention_scores(group, rule.expected, workers);
  if (!heads.allFinite()) report_not_finite(group, "a finite expected_attention");
  return with_first_on_top(heads.colwise().mean(), rule.expected.n_sink).row(0).transpose();
}

/// The lots of some tokens, after `seen` positions.
template <class T>
Vector<double> lots(const HeadGroup<T>& group, const EvictionRule& rule, std::span<const Index> tokens,
                    Index seen) {
  Vector<double> scores(std::ssize(tokens));
  for (Index at = 0; at < scores.size(); ++at)
    scores[at] = lot_of(rule, group.layer, group.kv_head, seen, tokens[at]);
  return scores;
}

Vector<double> by_position(Index l) { return Vector<double>::LinSpaced(l, 0, static_cast<double>(l - 1)); }

}  // namespace

template <class T>
std::vector<Vector<double>> rule_scores(const HeadGroup<T>& group, std::span<const EvictionRule> rules,
                                        const GivenScores& given, const Compute& compute) {
  // Metrics that do not depend on a window go along with any.
  std::map<Index, MetricSet> wanted;
  const auto window_of = [&](const EvictionRule& rule) {
    if (on_window(*rule.metric) || wanted.empty()) return rule.window;
    return wanted.begin()->first;
  };
  const auto computed = [](const EvictionRule& rule) { return rule.metric && !own_expected_attention(rule); };
  for (const EvictionRule& rule : rules)
    if (computed(rule) && on_window(*rule.metric)) wanted[rule.window].insert(*rule.metric);
  for (const EvictionRule& rule : rules)
    if (computed(rule) && !on_window(*rule.metric)) wanted[window_of(rule)].insert(*rule.metric);

  std::map<Index, TokenMetrics> metrics;
  for (const auto& [window, set] : wanted)
    metrics[window] =
        compute.backend.token_metrics(group, {.window = window, .metrics = set}, compute.workers);

  std::vector<Vector<double>> scores;
  for (const EvictionRule& rule : rules) {
    if (rule.given) {
      scores.push_back(given[*rule.given]);
    } else if (rule.metric && own_expected_attention(rule)) {
      scores.push_back(expected_attention(group, rule, compute.workers));
    } else if (rule.metric) {
      scores.push_back(metrics[window_of(rule)][*rule.metric].row(0).transpose());
    } else if (rule.seed) {
      std::vector<Index> all(group.l);
      std::iota(all.begin(), all.end(), Index{0});
      scores.push_back(lots(group, rule, all, group.l));
    } else {
      scores.push_back(only_searches(rule.policy) || rule.reads ? Vector<double>() : by_position(group.l));
    }
    if (rule.per_visible_row) divide_by_rows(group, rule, scores.back());
    if (rule.two_stages) take_means(group, rule, scores.back());
  }
  return scores;
}

template <class T>
BlockCuts<T>::BlockCuts(const HeadGroup<T>& group, const EvictionRule& rule, const Compute& compute)
    : group_(group), rule_(rule), compute_(compute) {
  if (rule.given || rule.per_visible_row) return;
  if (rule.metric == TokenMetric::keydiff) keydiff_.emplace(group.k, compute.workers);
  if (rule.metric == TokenMetric::triattention) triattention_.emplace(group, compute.workers);
}

template <class T>
void BlockCuts<T>::add(std::span<const Index> tokens) {
  if (keydiff_) keydiff_->add(tokens);
}

template <class T>
void BlockCuts<T>::remove(std::span<const Index> tokens) {
  if (keydiff_) keydiff_->remove(tokens);
}

template <class T>
std::vector<Index> BlockCuts<T>::cut(const std::vector<Index>& cache, Index budget, Index rows) {
  if (cache.empty()) return {};
  const auto seen = std::ranges::lower_bound(cache, group_.first_seen_from(cache.back() + 1));
  const Index candidates = cache.end() - seen;
  std::vector<Index> leaving(cache.begin(), seen);
  if (candidates > budget) {
    EvictionRule within = rule_;
    within.window = within.pool_window = std::min(rule_.window, rows);
    // KeyDiff, TriAttention and lots rank the cache in place. All other rules rank a copy of the cache;
    // KeyDiff also copies it to report a value that is not finite.
    Vector<double> scores;
    if (keydiff_) scores = keydiff_->scores(cache);
    if (rule_.seed) scores = lots(group_, rule_, cache, cache.back() + 1);
    if (triattention_) {
      scores = triattention_->scores(cache, cache.back() + 1);
      if (!scores.allFinite()) report_not_finite(group_, "a finite triattention");
    }
    if (scores.size() == 0 || !scores.allFinite())
      scores = rule_scores(cache_group(group_, cache, needs_rows(rule_) ? rows : 0), std::span(&within, 1),
                           {}, compute_)[0];
    for (const Index at : evicted_positions(keep_by(within, scores.tail(candidates), budget)))
      leaving.push_back(*(seen + at));
  }
  remove(leaving);
  return leaving;
}

template <class T>
Vector<double> second_weights(const HeadGroup<T>& group, const EvictionRule& rule, Workers& workers) {
  if (!rule.two_stages) return {};
  Vector<double> weights = Vector<double>::Zero(group.l);
  for (Index g = 0; g < group.G(); ++g) weights += projected_value_sums(group, g, workers);
  weights /= static_cast<double>(group.G());
  if (!weights.allFinite()) report_not_finite(group, "a finite ||v W_O||_1");
  return weights;
}

template <class T>
KeptSet evict_in_blocks(const HeadGroup<T>& group, const EvictionRule& rule, Index budget, Index block,
                        const Compute& compute) {
  std::vector<Index> cache;
  BlockCuts<T> cuts(group, rule, compute);
  for (Index begin = 0; begin < group.l; begin += block) {
    const Index end = std::min(begin + block, group.l);
    for (Index p = begin; p < end; ++p) cache.push_back(p);
    cuts.add(std::span(cache).last(end - begin));
    const std::vector<Index> evicted = cuts.cut(cache, budget, end - begin);
    std::vector<Index> left;
    std::set_difference(cache.begin(), cache.end(), evicted.begin(), evicted.end(), std::back_inserter(left));
    cache = std::move(left);
    if (compute.workers.stopping()) throw Interrupted{};
  }
  KeptSet kept(group.l, 0);
  for (const Index p : cache) kept[p] = 1;
  return kept;
}

template <class T>
std::vector<Index> cut_after_block(const HeadGroup<T>& group, const EvictionRule& rule,
                                   const std::vector<Index>& cache, Index budget, Index rows,
                                   const Compute& compute) {
  BlockCuts<T> cuts(group, rule, compute);
  cuts.add(cache);
  return cuts.cut(cache, budget, rows);
}

bool needs_rows(const EvictionRule& rule) {
  return (rule.metric && on_window(*rule.metric)) || rule.per_visible_row;
}

HeadParts parts_of(const EvictionRule& rule, const DumpShape& shape, bool in_blocks) {
  if (rule.by || own_expected_attention(rule)) return {.first_row = shape.first_query()};
  HeadParts parts{.first_row = shape.T, .values = false, .others = false, .checked_keys = false};
  if (rule.metric) parts |= parts_of(*rule.metric, shape, rule.window);
  if (rule.per_visible_row)
    parts.first_row = std::min(parts.first_row, window_rows(shape.l, shape.first_query(), rule.window).begin);
  if (rule.two_stages) parts |= {.first_row = shape.T};
  if (in_blocks || rule.block > 0) {
    if (needs_rows(rule)) parts.first_row = shape.first_query();
    parts.checked_keys = true;  // a block that keeps everything is not ranked
  }
  return parts;
}

std::optional<std::string> why_only_once(const EvictionRule& rule) {
  if (rule.threshold) return "a threshold keeps no budget";
  if (const auto why = kBases[rule.policy.base].whole_prompt; !why.empty()) return std::string(why);
  if (rule.shared_by_layer) return "one ranking for a whole layer is made after the prompt only";
  if (!rule.chunk_ends.empty()) return "lines and sentences are those of the whole prompt";
  return std::nullopt;
}

std::optional<std::string> why_not_in_blocks(const EvictionRule& rule) {
  if (const auto why = why_only_once(rule)) return why;
  if (rule.given) return "a score given for the whole prompt has no value within a block";
  if (rule.metric && !kTokenMetrics[*rule.metric].not_in_blocks.empty())
    return std::string(kTokenMetrics[*rule.metric].not_in_blocks);
  return std::nullopt;
}

template class BlockCuts<float>;
template class BlockCuts<double>;
template decltype(rule_scores<float>) rule_scores<float>;
template decltype(rule_scores<double>) rule_scores<double>;
template decltype(second_weights<float>) second_weights<float>;
template decltype(second_weights<double>) second_weights<double>;
template decltype(evict_in_blocks<float>) evict_in_blocks<float>;
template decltype(evict_in_blocks<double>) evict_in_blocks<double>;
template decltype(cut_after_block<float>) cut_after_block<float>;
template decltype(cut_after_block<double>) cut_after_block<double>;

}  // namespace kvreplay
