#include "sim/backend.hpp"
#include "sim/eviction/decode/decode.hpp"
#include "sim/eviction/decode/decode_cache.hpp"
#include "sim/eviction/decode/decode_rows.hpp"
#include "sim/eviction/decode/decode_run.hpp"
#include "sim/eviction/prompt_eviction.hpp"
#include "sim/tokens/keydiff.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace kvreplay {
namespace {

/// A cache, what its tokens are ranked by, and how it is cut.
template <class T>
class RankedCache {
 public:
  RankedCache(const HeadGroup<T>& group, const EvictionRule& rule, const KeptSet& start, Index budget,
              const DecodeOptions& options, const Matrix<double>& start_scores);

  void join(Index p);
  void add_scores(const AttentionRows<T>& attention);
  /// Back to the budget; what leaves is added to `left` as of `step`.
  void cut(Index step, std::vector<DecodeMove>& left);
  const TokenSlots<T>& slots() const { return slots_; }

 private:
  const HeadGroup<T>& group_;
  const EvictionRule& rule_;
  const Decoding decoding_;
  const Index budget_;
  const bool append_only_;
  const Index interval_;
  const std::optional<Index> window_;
  const Index sinks_end_;  // positions from here on are not sinks
  TokenSlots<T> slots_;
  std::optional<ScoreSums> sums_;
  std::optional<RowScores<T>> row_scores_;
  std::vector<Index> by_position_;  // slots, ascending by position
  Index rows_ = 0;                  // so far
  std::vector<Index> rows_before_;  // by slot: rows that went into its sum when it joined, less rows_ then
  Vector<double> rank_;
  Workers alone_{1};  // runs are what is shared out
  Compute on_thread_{alone_};
  std::optional<KeyDiff<T>> keydiff_;
  Vector<double> value_sum_;  // over the cache, for fastcaote
  std::optional<BlockCuts<T>> blocks_;

  void remove(Index slot);
  void drop_hidden(Index step, std::vector<DecodeMove>& left);
  void rank();
  void cut_block(Index step, std::vector<DecodeMove>& left);
  void evict(Index tokens, Index step, std::vector<DecodeMove>& left);
};

template <class T>
RankedCache<T>::RankedCache(const HeadGroup<T>& group, const EvictionRule& rule, const KeptSet& start,
                            Index budget, const DecodeOptions& options, const Matrix<double>& start_scores)
    : group_(group),
      rule_(rule),
      decoding_(decoding_of(rule, options)),
      budget_(std::max<Index>(budget, 0)),
      append_only_(options.append_only),
      interval_(options.interval),
      window_(steps_counted(rule, options)),
      sinks_end_(end_of_sinks(group, rule, start_tokens(group, start), budget_)),
      slots_(group, most_tokens(group, start, budget_, options), needs_differences(decoding_)),
      rank_(slots_.capacity()) {
  const Index capacity = slots_.capacity(), steps = decode_steps(group).count();
  const Index width = width_of_sums(group, decoding_);
  if (width > 0) {
    // A window that no run outlives drops nothing.
    sums_.emplace(width, capacity, window_ && *window_ < steps ? window_ : std::nullopt);
    row_scores_.emplace(group, *rule.metric, capacity);
  }
  if (decoding_.rank == CacheRank::keydiff) keydiff_.emplace(group.k, alone_);
  if (decoding_.rank == CacheRank::fastcaote) value_sum_.setZero(group.d_v());
  if (interval_ > 0) blocks_.emplace(group, rule, on_thread_);

  const bool carried = width > 0 && !window_;
  if (carried && (start_scores.rows() != width || start_scores.cols() != group.l))
    throw std::invalid_argument("decode_replay: start scores of another group or rule");
  const Index prompt_rows = window_rows(group.l, group.first_query(), rule.window).count();
  for (const Index p : start_tokens(group, start)) {
    join(p);
    if (!window_) rows_before_.back() = std::min(prompt_rows, group.l - p);
    if (!carried) continue;
    const Index slot = slots_.size() - 1;
    for (Index w = 0; w < width; ++w) sums_->sums(w)[slot] = start_scores(w, p);
  }
}

template <class T>
void RankedCache<T>::join(Index p) {
  const Index slot = slots_.size();
  slots_.add(p);
  by_position_.push_back(slot);
  rows_before_.push_back(-rows_);
  if (sums_) sums_->clear(slot);
  if (keydiff_) keydiff_->add({&p, 1});
  if (blocks_) blocks_->add({&p, 1});
  if (value_sum_.size() > 0) value_sum_ += slots_.value(slot);
}

template <class T>
void RankedCache<T>::remove(Index slot) {
  const Index last = slots_.size() - 1, p = slots_.position(slot);
  if (keydiff_) keydiff_->remove({&p, 1});
  if (value_sum_.size() > 0) value_sum_ -= slots_.value(slot);
  by_position_.erase(std::find(by_position_.begin(), by_position_.end(), slot));
  if (slot != last) {
    *std::find(by_position_.begin(), by_position_.end(), last) = slot;
    rows_before_[slot] = rows_before_.back();
    if (sums_) sums_->move(last, slot);
  }
  rows_before_.pop_back();
  slots_.remove(slot);
}

template <class T>
void RankedCache<T>::add_scores(const AttentionRows<T>& attention) {
  ++rows_;
  if (!sums_) return;
  row_scores_->take(attention, slots_, sums_->new_row());
  sums_->add_row();
}

template <class T>
void RankedCache<T>::rank() {
  const Index n = slots_.size();
  switch (decoding_.rank) {
    case CacheRank::none:
      throw std::logic_error("a cache that nothing ranks");
    case CacheRank::own:
      for (Index p = 0; p < n; ++p)
        rank_[p] = own_score(decoding_.own, {static_cast<double>(slots_.position(p)), slots_.key_norm(p),
                                             slots_.value_sq()[p]});
      break;
    case CacheRank::keydiff:
      rank_.head(n) = keydiff_->scores(slots_.positions());
      break;
    case CacheRank::row_sums:
      std::copy_n(sums_->sums(0), n, rank_.data());
      break;
    case CacheRank::caote:
    case CacheRank::fastcaote:
      row_scores_->take_caote(*sums_, slots_, value_sum_ / static_cast<double>(n), rank_.data());
      break;
  }
  if (!rule_.per_visible_row) return;
  for (Index p = 0; p < n; ++p) {
    Index rows = rows_ + rows_before_[p];
    if (window_) rows = std::min(rows, *window_);
    if (rows > 0) rank_[p] /= static_cast<double>(rows);
  }
}

/// Removes tokens that a sliding window hides from all later rows, whatever the budget.
template <class T>
void RankedCache<T>::drop_hidden(Index step, std::vector<DecodeMove>& left) {
  const Index first = group_.first_seen_from(slots_.position(by_position_.back()) + 1);
  while (!by_position_.empty() && slots_.position(by_position_.front()) < first) {
    left.push_back({step, slots_.position(by_position_.front())});
    if (blocks_) blocks_->remove({&left.back().position, 1});
    remove(by_position_.front());
  }
}

template <class T>
void RankedCache<T>::cut(Index step, std::vector<DecodeMove>& left) {
  if (group_.rule.sliding_window) drop_hidden(step, left);
  const Index n = slots_.size();
  if (n == 0) return;
  if (interval_ > 0) return cut_block(step, left);
  if (n <= budget_) return;
  rank();
  if (!append_only_) {
    evict(n - budget_, step, left);
    return;
  }
  const Index newest = by_position_.back();
  Index before = -1;  // a tie goes to the other; the newest counts itself
  for (Index p = 0; p < n; ++p) before += rank_[p] >= rank_[newest] ? 1 : 0;
  if (before < budget_) return;
  left.push_back({step, slots_.position(newest)});
  remove(newest);
}

template <class T>
void RankedCache<T>::cut_block(Index step, std::vector<DecodeMove>& left) {
  const Index newest = slots_.position(by_position_.back());
  if ((newest + 1 - group_.l) % interval_ != 0) return;
  std::vector<Index> cache;
  for (const Index slot : by_position_) cache.push_back(slots_.position(slot));
  const Index with_query = std::max<Index>(newest + 1 - group_.first_query(), 0);
  for (const Index p : blocks_->cut(cache, budget_, std::min(interval_, with_query))) {
    left.push_back({step, p});
    remove(*std::find_if(by_position_.begin(), by_position_.end(),
                         [&](Index slot) { return slots_.position(slot) == p; }));
  }
}

template <class T>
void RankedCache<T>::evict(Index tokens, Index step, std::vector<DecodeMove>& left) {
  const Index recent = std::min(rule_.recent, budget_ - std::min(rule_.sinks, budget_));
  const auto begin = std::ranges::partition_point(
      by_position_, [&](Index slot) { return slots_.position(slot) < sinks_end_; });
  const auto end = by_position_.end() - recent;
  if (tokens == 1) {
    auto least = begin;
    for (auto at = begin; at != end; ++at)
      if (rank_[*at] <= rank_[*least]) least = at;  // among equals the last
    left.push_back({step, slots_.position(*least)});
    remove(*least);
    return;
  }
  std::vector<Index> lowest(begin, end);
  std::sort(lowest.begin(), lowest.end(), [&](Index a, Index b) {
    return rank_[a] != rank_[b] ? rank_[a] < rank_[b] : slots_.position(a) > slots_.position(b);
  });
  lowest.resize(tokens);
  const auto first = std::ssize(left);
  for (const Index slot : lowest) left.push_back({step, slots_.position(slot)});
  std::sort(left.begin() + first, left.end(),
            [](const DecodeMove& a, const DecodeMove& b) { return a.position < b.position; });
  std::sort(lowest.rbegin(),
            lowest.rend());  // the last slot takes a place: from the back, none of these moves
  for (const Index slot : lowest) remove(slot);
}

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
  RankedCache<T> cache(group, rule, start, budget, options, start_scores);
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
      cache.add_scores(attention);
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
  RankedCache<T> cache;
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
  cache.add_scores(attention);
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
