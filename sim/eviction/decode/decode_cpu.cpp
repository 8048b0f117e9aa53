#include "sim/backend.hpp"
#include "sim/eviction/decode/decode.hpp"
#include "sim/eviction/decode/decode_policy.hpp"
#include "sim/eviction/decode/decode_run.hpp"
#include "sim/eviction/prompt_eviction.hpp"
#include "sim/simd/panel.hpp"

#include <algorithm>
#include <stdexcept>

namespace kvreplay {
namespace {

/// A cache, and the policy that says what leaves it.
template <class T>
class DecodeCache {
 public:
  DecodeCache(const HeadGroup<T>& group, const EvictionRule& rule, const KeptSet& start, Index budget,
              const DecodeOptions& options, const Matrix<double>& start_scores)
      : group_(group),
        budget_(std::max<Index>(budget, 0)),
        recent_(std::min(rule.recent, budget_ - std::min(rule.sinks, budget_))),
        sinks_end_(end_of_sinks(group, rule, start_tokens(group, start), budget_)),
        slots_(group, most_tokens(group, start, budget_, options),
               needs_differences(decoding_of(rule, options))),
        policy_(decode_policy(group, rule, options, slots_)) {
    for (const Index p : start_tokens(group, start)) join(p);
    policy_->init(start_scores);
  }

  void join(Index p) {
    by_position_.push_back(slots_.size());
    slots_.add(p);
    policy_->join(by_position_.back());
  }
  void observe(const AttentionRows<T>& rows) { policy_->observe(rows); }
  /// Back to the budget; what leaves is added to `left` as of `step`.
  void cut(Index step, std::vector<DecodeMove>& left) {
    if (group_.rule.sliding_window) drop_hidden(step, left);
    if (slots_.size() == 0) return;
    const std::span<const Index> all = by_position_;
    const auto first =
        std::ranges::partition_point(all, [&](Index slot) { return slots_.position(slot) < sinks_end_; });
    const auto end = all.end() - std::min(recent_, slots_.size());
    const auto count = std::ssize(left);
    for (const Index p : policy_->victims({all, {first, std::max(first, end)}, budget_})) {
      left.push_back({step, p});
      remove(std::ranges::find(slots_.positions(), p) - slots_.positions().begin());
    }
    std::sort(left.begin() + count, left.end(),
              [](const DecodeMove& a, const DecodeMove& b) { return a.position < b.position; });
  }
  const TokenSlots<T>& slots() const { return slots_; }

 private:
  const HeadGroup<T>& group_;
  const Index budget_, recent_;
  const Index sinks_end_;  // positions from here on are not sinks
  TokenSlots<T> slots_;
  std::vector<Index> by_position_;  // slots, ascending by position
  std::unique_ptr<DecodePolicy<T>> policy_;

  void remove(Index slot) {
    policy_->leave(slot);
    by_position_.erase(std::find(by_position_.begin(), by_position_.end(), slot));
    if (const Index last = slots_.size() - 1; slot != last)
      *std::find(by_position_.begin(), by_position_.end(), last) = slot;
    slots_.remove(slot);
  }
  /// Removes tokens that a sliding window hides from all later rows, whatever the budget.
  void drop_hidden(Index step, std::vector<DecodeMove>& left) {
    const Index first = group_.first_seen_from(slots_.position(by_position_.back()) + 1);
    while (!by_position_.empty() && slots_.position(by_position_.front()) < first) {
      left.push_back({step, slots_.position(by_position_.front())});
      remove(by_position_.front());
    }
  }
};

/// The query heads of position i, over all of a cache.
template <class T>
void attend(AttentionRows<T>& attention, const TokenSlots<T>& slots, Index i) {
  for (Index g = 0; g < attention.rows(); ++g) attention.set(g, g, i, slots.size());
  attention.attend(slots);
}

}  // namespace

std::optional<std::string> why_not_in_decoding(const EvictionRule& rule) {
  if (const auto why = why_only_once(rule)) return why;
  if (rule.given) return "a score given for the prompt has no value for decoded tokens";
  if (rule.metric && !kTokenMetrics[*rule.metric].not_in_decoding.empty())
    return std::string(kTokenMetrics[*rule.metric].not_in_decoding);
  if (rule.page > 1) return "whole pages are evicted after the prompt or a block of it only";
  return std::nullopt;
}

std::optional<std::string> why_not_at_intervals(const EvictionRule& rule) {
  EvictionRule others = rule;
  // TriAttention looks at the prompt's queries once; their means serve any cache.
  if (rule.metric == TokenMetric::triattention) others.metric.reset();
  return why_not_in_blocks(others);
}

bool decodes_on_device(const EvictionRule& rule, const DecodeOptions& options) {
  const CacheRank rank = decoding_of(rule, options).rank;
  return rank == CacheRank::own || rank == CacheRank::row_sums;
}

template <class T>
Matrix<double> decode_start_scores(const HeadGroup<T>& group, const EvictionRule& rule,
                                   const DecodeOptions& options, const Compute& compute) {
  const Decoding decoding = decoding_of(rule, options);
  if (!sums_rows(decoding) || steps_counted(rule, options)) return {};
  const bool heads = by_query_head(decoding.rank);
  if (window_rows(group.l, group.first_query(), rule.window).count() == 0)
    return Matrix<double>::Zero(heads ? group.G() : 1, group.l);
  TokenOptions asked;
  asked.window = rule.window;
  asked.per_query_head = heads;
  asked.metrics = {heads ? TokenMetric::attn : *rule.metric};
  return compute.backend.token_metrics(group, asked,
                                       compute.workers)[heads ? TokenMetric::attn : *rule.metric];
}

template <class T>
std::vector<Matrix<T>> decode_full_outputs(const HeadGroup<T>& group, Workers& workers) {
  const RowRange steps = decode_steps(group);
  const Index G = group.G(), n = steps.count();
  std::vector<Matrix<T>> outputs(G, Matrix<T>(n, group.d_v()));
  TokenSlots<T> slots(group, group.T_all(), false);
  for (Index p = 0; p < group.T_all(); ++p) slots.add(p);
  constexpr Index kAtOnce = 4, kItem = 16;  // steps: that share their reading of the keys; of one work item
  workers.parallel_for(div_up(n, kItem), [&](Index item) {
    AttentionRows<T> attention(group, slots.capacity(), kAtOnce * G);
    const Index end = std::min((item + 1) * kItem, n);
    for (Index begin = item * kItem; begin < end; begin += kAtOnce) {
      const auto step_of = [&](Index r) { return std::min(begin + r / G, end - 1); };
      for (Index r = 0; r < attention.rows(); ++r)
        attention.set(r, r % G, steps.begin + step_of(r), steps.begin + step_of(r) + 1);
      attention.attend(slots);
      for (Index r = 0; r < attention.rows(); ++r)
        outputs[r % G].row(step_of(r)) = attention.output(r).transpose().template cast<T>();
    }
  });
  return outputs;
}

template <class T>
DecodeReplay<T> decode_replay(const HeadGroup<T>& group, const EvictionRule& rule, const KeptSet& start,
                              Index budget, const DecodeOptions& options, const Matrix<double>& start_scores,
                              const std::vector<Matrix<T>>& full, Workers& workers) {
  const RowRange steps = decode_steps(group);
  const Index G = group.G();
  DecodeReplay<T> replay;
  replay.first_step = steps.begin;
  replay.change_sq.assign(steps.count(), 0.0);
  replay.full_sq = replay.change_sq;
  replay.change.assign(G, Matrix<T>(steps.count(), group.d_v()));
  DecodeCache<T> cache(group, rule, start, budget, options, start_scores);
  AttentionRows<T> attention(group, cache.slots().capacity(), G);
  for (Index i = group.l; i < group.T_all(); ++i) {
    if (workers.stopping()) throw Interrupted{};
    cache.join(i);
    if (i >= steps.begin) {
      const auto step = static_cast<std::size_t>(i - steps.begin);
      attend(attention, cache.slots(), i);
      // Removals by the sliding window have changed the order of the slots.
      const Index first = group.first_visible(i);
      const bool sees_all = group.rule.sliding_window && cache.slots().size() == i + 1 - first &&
                            group.first_seen_from(i) == first;
      for (Index g = 0; g < G; ++g) {
        const auto whole = full[g].row(i - steps.begin);
        auto change = replay.change[g].row(i - steps.begin);
        change = attention.output(g).transpose().template cast<T>() - whole;
        if (sees_all) change.setZero();
        replay.change_sq[step] += change.template cast<double>().squaredNorm();
        replay.full_sq[step] += whole.template cast<double>().squaredNorm();
      }
      cache.observe(attention);
    }
    cache.cut(i - steps.begin, replay.left);
  }
  replay.kept.assign(group.l, 0);
  replay.cache_size = cache.slots().size();
  for (Index slot = 0; slot < replay.cache_size; ++slot)
    if (cache.slots().position(slot) < group.l) replay.kept[cache.slots().position(slot)] = 1;
  return replay;
}

template <class T>
struct DecodingCache<T>::Parts {
  std::shared_ptr<HeadGroup<T>> group;
  EvictionRule rule;
  DecodeCache<T> cache;
  AttentionRows<T> attention;
  Index next;

  Parts(std::shared_ptr<HeadGroup<T>> of, const EvictionRule& by, const KeptSet& start, Index budget,
        const DecodeOptions& options, const Matrix<double>& start_scores)
      : group(std::move(of)),
        rule(by),
        cache(*group, rule, start, budget, options, start_scores),
        attention(*group, cache.slots().capacity(), group->G()),
        next(group->l) {}
};

template <class T>
DecodingCache<T>::DecodingCache(std::shared_ptr<HeadGroup<T>> group, const EvictionRule& rule,
                                const KeptSet& start, Index budget, const DecodeOptions& options,
                                const Matrix<double>& start_scores)
    : parts_(std::make_unique<Parts>(std::move(group), rule, start, budget, options, start_scores)) {}

template <class T>
DecodingCache<T>::~DecodingCache() = default;

template <class T>
std::vector<Index> DecodingCache<T>::step() {
  auto& [group, rule, cache, attention, next] = *parts_;
  if (next == group->T_all()) throw std::logic_error("a position that the group has no room for");
  cache.join(next);
  attend(attention, cache.slots(), next);
  cache.observe(attention);
  std::vector<DecodeMove> left;
  cache.cut(next, left);
  ++next;
  std::vector<Index> positions;
  for (const DecodeMove& move : left) positions.push_back(move.position);
  return positions;
}

template <class T>
std::vector<std::int32_t> last_rows(const KeptSet& start, Index T_all, const DecodeReplay<T>& replay) {
  const Index l = std::ssize(start);
  std::vector<std::int32_t> last(T_all, static_cast<std::int32_t>(T_all));
  for (Index p = 0; p < l; ++p)
    if (start[p] == 0) last[p] = static_cast<std::int32_t>(l - 1);
  for (const DecodeMove& move : replay.left)
    last[move.position] = static_cast<std::int32_t>(replay.first_step + move.step);
  return last;
}

template <class T>
std::vector<double> step_tokens(const KeptSet& start, const DecodeReplay<T>& replay) {
  std::vector<double> tokens;
  Index left = 0;
  for (Index step = 0; step < std::ssize(replay.change_sq); ++step) {
    while (left < std::ssize(replay.left) && replay.left[left].step < step) ++left;
    const Index joined = replay.first_step + step + 1 - std::ssize(start);
    tokens.push_back(static_cast<double>(count(start) + joined - left));
  }
  return tokens;
}

template <class T>
std::vector<DecodeReplay<T>> decode_replays(const HeadGroup<T>& group, std::span<const DecodeRequest> runs,
                                            const std::vector<Matrix<T>>& full, Workers& workers) {
  std::vector<DecodeReplay<T>> replays(runs.size());
  workers.parallel_for(std::ssize(runs), [&](std::ptrdiff_t r) {
    const DecodeRequest& run = runs[r];
    replays[r] = decode_replay(group, *run.rule, *run.start, run.budget, run.options, *run.start_scores, full,
                               workers);
  });
  return replays;
}

template decltype(decode_start_scores<float>) decode_start_scores<float>;
template decltype(decode_start_scores<double>) decode_start_scores<double>;
template decltype(decode_full_outputs<float>) decode_full_outputs<float>;
template decltype(decode_full_outputs<double>) decode_full_outputs<double>;
template decltype(decode_replay<float>) decode_replay<float>;
template decltype(decode_replay<double>) decode_replay<double>;
template decltype(decode_replays<float>) decode_replays<float>;
template decltype(last_rows<float>) last_rows<float>;
template decltype(last_rows<double>) last_rows<double>;
template decltype(step_tokens<float>) step_tokens<float>;
template decltype(step_tokens<double>) step_tokens<double>;
template class DecodingCache<float>;
template class DecodingCache<double>;
template decltype(decode_replays<double>) decode_replays<double>;

}  // namespace kvreplay
