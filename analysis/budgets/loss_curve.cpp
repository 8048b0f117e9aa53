#include "analysis/budgets/loss_curve.hpp"

#include "analysis/budgets/budget_frame.hpp"
#include "analysis/results/agreement.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

namespace kvreplay {

LossCurves::LossCurves(Index all_heads, Index l)
    : all_heads_(all_heads),
      l_(l),
      gain_(static_cast<std::size_t>(all_heads * l)),
      loss_(static_cast<std::size_t>(all_heads * (l + 1))) {}

std::span<const double> LossCurves::gain(Index head) const {
  return {gain_.data() + head * l_, static_cast<std::size_t>(l_)};
}

std::span<const double> LossCurves::loss(Index head) const {
  return {loss_.data() + head * (l_ + 1), static_cast<std::size_t>(l_ + 1)};
}

void LossCurves::set(Index head, std::span<const std::int32_t> order, std::span<const double> importance) {
  assert(head >= 0 && head < all_heads_);
  assert(std::ssize(order) == l_ && std::ssize(importance) == l_);
  double* gain = gain_.data() + head * l_;
  double* loss = loss_.data() + head * (l_ + 1);
  // From the end, so that small losses are sums of small numbers; Neumaier's compensation keeps every prefix
  // within a unit in the last place, and the maximum keeps that unit from making the curve rise.
  double sum = 0, lost = 0;
  loss[l_] = 0;
  for (Index j = l_; j-- > 0;) {
    const double value = importance[order[j]];
    assert(value >= 0 && std::isfinite(value));
    gain[j] = value;
    const double next = sum + value;
    lost += sum >= value ? (sum - next) + value : (value - next) + sum;
    sum = next;
    loss[j] = std::max(loss[j + 1], sum + lost);
  }
}

void LossCurves::set_losses(Index head, std::span<const double> losses) {
  assert(head >= 0 && head < all_heads_ && std::ssize(losses) == l_ + 1);
  std::copy(losses.begin(), losses.end(), loss_.begin() + head * (l_ + 1));
  for (Index j = 0; j < l_; ++j) gain_[head * l_ + j] = losses[j] - losses[j + 1];
}

LossCurves loss_curves(const Matrix<double>& values, Index column, Index l, Index n_kv,
                       bool normalise_by_layer) {
  LossCurves curves(values.rows(), l);
  std::vector<std::int32_t> as_it_stands(l);
  std::iota(as_it_stands.begin(), as_it_stands.end(), 0);
  for (Index first = 0; first < values.rows(); first += n_kv) {
    const auto layer = values.block(first, column, n_kv, l);
    const double sum = normalise_by_layer ? layer.sum() : 0;
    for (Index g = 0; g < n_kv; ++g) {
      std::vector<double> worth(l);
      for (Index j = 0; j < l; ++j) worth[j] = sum > 0 ? layer(g, j) / sum : layer(g, j);
      curves.set(first + g, as_it_stands, worth);
    }
  }
  return curves;
}

LossCurves by_importance(const LossCurves& curves) {
  LossCurves best(curves.all_heads(), curves.l());
  std::vector<std::int32_t> order(curves.l());
  for (Index head = 0; head < curves.all_heads(); ++head) {
    const std::span<const double> gain = curves.gain(head);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](std::int32_t a, std::int32_t b) { return gain[a] > gain[b]; });
    best.set(head, order, gain);
  }
  return best;
}

double total_loss(const LossCurves& curves, const Budgets& budgets) {
  assert(std::ssize(budgets) == curves.all_heads());
  std::vector<double> losses(budgets.size());
  for (std::size_t h = 0; h < budgets.size(); ++h) losses[h] = curves.loss(static_cast<Index>(h))[budgets[h]];
  return compensated_sum(losses);
}

void append_hull(std::span<const double> gain, Index first, std::int32_t head,
                 std::vector<HullBlock>& blocks) {
  struct Pool {
    double sum;
    std::int32_t begin, end;
    double mean() const { return sum / static_cast<double>(end - begin); }
  };
  std::vector<Pool> pools;
  for (Index j = first; j < std::ssize(gain); ++j) {
    const auto at = static_cast<std::int32_t>(j);
    pools.push_back({gain[j], at, at + 1});
    // Equal means stay apart: single tokens of equal importance then have exactly equal slopes.
    while (pools.size() > 1 && pools.back().mean() > pools[pools.size() - 2].mean()) {
      const Pool last = pools.back();
      pools.pop_back();
      pools.back().sum += last.sum;
      pools.back().end = last.end;
    }
  }
  for (const Pool& pool : pools) blocks.push_back({pool.mean(), head, pool.begin, pool.end});
}

HullGreedy::HullGreedy(const LossCurves& curves, Index lower)
    : all_heads_(curves.all_heads()), lower_(lower) {
  for (Index h = 0; h < all_heads_; ++h)
    append_hull(curves.gain(h), lower, static_cast<std::int32_t>(h), blocks_);
  std::ranges::sort(blocks_, [](const HullBlock& a, const HullBlock& b) {
    if (a.slope != b.slope) return a.slope > b.slope;
    return a.head != b.head ? a.head < b.head : a.begin < b.begin;
  });
}

Budgets HullGreedy::budgets(Index total) const {
  Budgets budgets(static_cast<std::size_t>(all_heads_), lower_);
  Index left = total - lower_ * all_heads_;
  assert(left >= 0);
  for (const HullBlock& block : blocks_) {
    if (left == 0) break;
    const Index taken = std::min<Index>(left, block.end - block.begin);
    budgets[block.head] += taken;
    left -= taken;
  }
  assert(left == 0);
  return budgets;
}

const HullBlock* HullGreedy::unfinished(Index total) const {
  Index left = total - lower_ * all_heads_;
  for (const HullBlock& block : blocks_) {
    if (left == 0) return nullptr;
    if (left < block.end - block.begin) return &block;
    left -= block.end - block.begin;
  }
  return nullptr;
}

namespace {

/// A budget of one head, as its deviation from the head's tangent budget, and its reduced cost (>= 0).
struct Deviation {
  std::int32_t tokens;
  std::int64_t cost;
};

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

/// The least cost of one token more (direction 1) or less (-1) among a head's choices; kNever without one.
std::int64_t least_slope(const std::vector<Deviation>& choices, std::int32_t direction) {
  std::int64_t least = kNever;
  for (const Deviation& choice : choices)
    if (choice.tokens * direction > 0) least = std::min(least, choice.cost / (choice.tokens * direction));
  return least;
}

/// Chooses one deviation a head: the cheapest choice whose deviations sum to at most `spare`, each token
/// short of it costing `slack_cost` (> 0), and whose cost is at most `gap` (optimal(), step 4).
class DeviationProgramme {
 public:
  /// `choices`: [heads], each ascending and with (0, 0) among them; refers to them.
  DeviationProgramme(const std::vector<std::vector<Deviation>>& choices, Index spare, std::int64_t slack_cost,
                     std::int64_t gap)
      : choices_(choices), spare_(spare), slack_cost_(slack_cost), gap_(gap) {
    order_heads();
  }

  /// Tokens a head, or nothing where no choice costs `gap` or less.
  std::optional<std::vector<std::int32_t>> solve() {
    sum_ = {0};
    cost_ = {0};
    if (!can_close(0, 0, behind_.front())) return std::nullopt;
    for (std::size_t stage = 0; stage < heads_.size(); ++stage) {
      extend(stage);
      if (sum_.empty()) return std::nullopt;
    }
    std::int64_t best_cost = kNever;
    std::int32_t best = 0;
    for (std::size_t s = 0; s < sum_.size(); ++s) {
      if (!can_close(sum_[s], cost_[s], behind_.back())) continue;
      const std::int64_t cost = cost_[s] + (spare_ - sum_[s]) * slack_cost_;
      if (cost >= best_cost) continue;
      best_cost = cost;
      best = sum_[s];
    }
    if (best_cost == kNever) return std::nullopt;

    std::vector<std::int32_t> tokens(choices_.size(), 0);
    for (std::size_t stage = heads_.size(); stage-- > 0;) {
      const Trace& trace = traces_[stage];
      const auto at = std::lower_bound(trace.sum.begin(), trace.sum.end(), best) - trace.sum.begin();
      tokens[heads_[stage]] = trace.last[at];
      best -= tokens[heads_[stage]];
    }
    return tokens;
  }

  std::size_t peak_states() const { return peak_states_; }
  std::size_t states() const { return states_; }

 private:
  /// Partial sums over the heads so far, ascending, with the last head's part, for tracing back.
  struct Trace {
    std::vector<std::int32_t> sum, last;
  };
  /// Bounds on the contribution of the heads behind a stage.
  struct Behind {
    std::int64_t up;    ///< least cost of a token more
    std::int64_t down;  ///< least cost of a token less
    Index lowest;       ///< least sum of deviations
  };

  void order_heads() {
    // Heads that deviate cheaply first: the bounds on what is left are then tight from early on.
    std::vector<std::int64_t> cheapest(choices_.size());
    for (std::size_t h = 0; h < choices_.size(); ++h) {
      cheapest[h] = std::min(least_slope(choices_[h], 1), least_slope(choices_[h], -1));
      if (choices_[h].size() > 1) heads_.push_back(h);
    }
    std::ranges::stable_sort(heads_, [&](std::size_t a, std::size_t b) { return cheapest[a] < cheapest[b]; });

    behind_.resize(heads_.size() + 1);
    behind_.back() = {slack_cost_, kNever, 0};
    for (std::size_t s = heads_.size(); s-- > 0;) {
      const auto& choices = choices_[heads_[s]];
      behind_[s] = {std::min(behind_[s + 1].up, least_slope(choices, 1)),
                    std::min(behind_[s + 1].down, least_slope(choices, -1)),
                    behind_[s + 1].lowest + choices.front().tokens};
    }
  }
  bool can_close(std::int64_t sum, std::int64_t cost, const Behind& behind) const {
    const std::int64_t room = gap_ - cost, missing = spare_ - sum;
    if (room < 0) return false;
    if (missing == 0) return true;
    // missing * slope <= room, without the product, which may overflow
    if (missing > 0) return behind.up == 0 || missing <= room / behind.up;
    return missing >= behind.lowest && (behind.down == 0 || -missing <= room / behind.down);
  }
  void extend(std::size_t stage) {
    const auto& choices = choices_[heads_[stage]];
    const Behind& behind = behind_[stage + 1];
    // Sums that can still be closed lie in one window.
    std::int64_t low = sum_.front() + choices.front().tokens, high = sum_.back() + choices.back().tokens;
    if (behind.up > 0) low = std::max(low, spare_ - gap_ / behind.up);
    high = std::min(high, spare_ - behind.lowest);
    if (behind.down > 0) high = std::min(high, spare_ + gap_ / behind.down);
    std::vector<std::int32_t> sums, last;
    std::vector<std::int64_t> costs;
    if (low <= high) {
      const auto width = static_cast<std::size_t>(high - low + 1);
      scratch_cost_.assign(width, kNever);
      scratch_last_.resize(width);
      for (const Deviation& choice : choices) {
        const auto begin = std::lower_bound(sum_.begin(), sum_.end(), low - choice.tokens) - sum_.begin();
        const auto end = std::upper_bound(sum_.begin(), sum_.end(), high - choice.tokens) - sum_.begin();
        const std::int64_t offset = choice.tokens - low, room = gap_ - choice.cost;
        for (auto s = static_cast<std::size_t>(begin); s < static_cast<std::size_t>(end); ++s) {
          if (cost_[s] > room) continue;
          const auto at = static_cast<std::size_t>(sum_[s] + offset);
          const std::int64_t cost = cost_[s] + choice.cost;
          if (cost >= scratch_cost_[at]) continue;
          scratch_cost_[at] = cost;
          scratch_last_[at] = choice.tokens;
        }
      }
      for (std::size_t at = 0; at < width; ++at) {
        const std::int64_t sum = low + static_cast<std::int64_t>(at);
        if (scratch_cost_[at] == kNever || !can_close(sum, scratch_cost_[at], behind)) continue;
        sums.push_back(static_cast<std::int32_t>(sum));
        costs.push_back(scratch_cost_[at]);
        last.push_back(scratch_last_[at]);
      }
    }
    sum_ = sums;
    cost_ = std::move(costs);
    peak_states_ = std::max(peak_states_, sum_.size());
    states_ += sum_.size();
    traces_.push_back({std::move(sums), std::move(last)});
  }

  const std::vector<std::vector<Deviation>>& choices_;
  std::int64_t spare_, slack_cost_, gap_;
  std::vector<std::size_t> heads_;  ///< heads with a choice, in the order of the stages
  std::vector<Behind> behind_;      ///< behind_[s]: heads after stage s
  std::vector<std::int32_t> sum_;   ///< the present partial sums, ascending, and their costs
  std::vector<std::int64_t> cost_, scratch_cost_;
  std::vector<std::int32_t> scratch_last_;
  std::vector<Trace> traces_;
  std::size_t peak_states_ = 1, states_ = 0;
};

/// The losses of all heads as integers, and the tangent budgets at one lambda.
class ReducedCosts {
 public:
  ReducedCosts(const BudgetFrame& frame, const LossCurves& curves, double greedy_loss, double slope)
      : frame_(frame), curves_(curves) {
    // Beyond 2^1000 the factor itself would overflow.
    const int exponent = std::min(60 - std::ilogb(greedy_loss), 1000);
    scale_ = std::ldexp(1.0, exponent);
    limit_ = integer(greedy_loss) + frame.all_heads();
    lambda_ = std::max<std::int64_t>(1, integer(slope));
    for (Index h = 0; h < frame.all_heads(); ++h) add_tangent(h);
  }

  std::int64_t lambda() const { return lambda_; }
  const std::vector<Index>& tangent() const { return tangent_; }

  /// r_h(b) of a budget at which the loss is at most `limit_`.
  std::int64_t reduced(Index head, Index b) const {
    const auto h = static_cast<std::size_t>(head);
    return loss(head, b) - tangent_loss_[h] + lambda_ * (b - tangent_[h]);
  }

  /// The budgets of a head with r <= gap, as deviations from its tangent, ascending.
  std::vector<Deviation> within(Index head, std::int64_t gap) const {
    std::vector<Deviation> found;
    const auto h = static_cast<std::size_t>(head);
    // Behind the tangent lambda alone exceeds the gap from here on, whatever the loss falls by.
    const Index reach = static_cast<Index>((gap + tangent_loss_[h]) / lambda_);
    const Index last = std::min(frame_.l, tangent_[h] + reach);
    std::int64_t before = 0;
    for (Index b = first_[h]; b <= last; ++b) {
      const std::int64_t here = loss(head, b);
      const bool falls = b == first_[h] || here < before;
      before = here;
      if (!falls) continue;
      const std::int64_t r = here - tangent_loss_[h] + lambda_ * (b - tangent_[h]);
      if (r <= gap) found.push_back({static_cast<std::int32_t>(b - tangent_[h]), r});
    }
    return found;
  }

 private:
  std::int64_t integer(double loss) const { return std::llround(loss * scale_); }
  std::int64_t loss(Index head, Index b) const { return integer(curves_.loss(head)[b]); }

  void add_tangent(Index head) {
    const auto losses = curves_.loss(head);
    // The first budget whose loss is no larger than all of the greedy's, found in double: beyond, the
    // integers might overflow.
    const double limit = static_cast<double>(limit_) / scale_;
    Index b = std::partition_point(losses.begin() + frame_.lower, losses.end() - 1,
                                   [&](double x) { return x > limit; }) -
              losses.begin();
    first_.push_back(b);
    Index best = b;
    std::int64_t best_loss = loss(head, b);
    for (++b; b <= frame_.l; ++b) {
      const std::int64_t here = loss(head, b), fall = best_loss - here;
      // fall > lambda (b - best), without the product, which may overflow
      if (fall < lambda_ || (fall - 1) / lambda_ < b - best) continue;
      best = b;
      best_loss = here;
    }
    tangent_.push_back(best);
    tangent_loss_.push_back(best_loss);
  }

  const BudgetFrame& frame_;
  const LossCurves& curves_;
  double scale_ = 1;
  std::int64_t limit_ = 0, lambda_ = 1;
  std::vector<Index> tangent_, first_;  ///< [all_heads]; first_: the least budget not ruled out
  std::vector<std::int64_t> tangent_loss_;
};

/// Hands out what is left of the total, lower heads first: no loss can rise by it.
void spend(Index slack, Index l, Budgets& budgets) {
  for (Index& b : budgets) {
    const Index more = std::min(slack, l - b);
    b += more;
    slack -= more;
  }
}

}  // namespace

Budgets optimal(const BudgetFrame& frame, const LossCurves& curves, const HullGreedy& greedy,
                OptimalSearch* search) {
  assert(curves.all_heads() == frame.all_heads() && curves.l() == frame.l);
  OptimalSearch ignored;
  OptimalSearch& took = search ? *search : ignored;
  took = {};
  const Budgets start = greedy.budgets(frame.total);
  const HullBlock* block = greedy.unfinished(frame.total);
  const double greedy_loss = total_loss(curves, start);
  if (block == nullptr || greedy_loss == 0) return start;

  const ReducedCosts costs(frame, curves, greedy_loss, block->slope);
  std::int64_t greedy_cost = 0;
  for (Index h = 0; h < frame.all_heads(); ++h) greedy_cost += costs.reduced(h, start[h]);
  // lambda is rounded, and so are the losses: less than this is nothing.
  if (greedy_cost <= frame.all_heads() + frame.l) return start;

  const auto& tangent = costs.tangent();
  const Index spare = frame.total - std::accumulate(tangent.begin(), tangent.end(), Index{0});
  for (std::int64_t gap = std::max<std::int64_t>(1, greedy_cost >> 24);; gap *= 2) {
    gap = std::min(gap, greedy_cost - 1);
    ++took.rounds;
    std::vector<std::vector<Deviation>> choices;
    took.candidates = 0;
    for (Index h = 0; h < frame.all_heads(); ++h) {
      choices.push_back(costs.within(h, gap));
      took.candidates += choices.back().size();
    }
    DeviationProgramme programme(choices, spare, costs.lambda(), gap);
    const auto deviations = programme.solve();
    took.peak_states = programme.peak_states();
    took.states = programme.states();
    if (deviations) {
      Budgets best = tangent;
      Index slack = spare;
      for (std::size_t h = 0; h < best.size(); ++h) {
        best[h] += (*deviations)[h];
        slack -= (*deviations)[h];
      }
      spend(slack, frame.l, best);
      return total_loss(curves, best) < greedy_loss ? best : start;
    }
    if (gap == greedy_cost - 1) return start;
  }
}

}  // namespace kvreplay
