#include "analysis/budgets/optimal.hpp"

#include "analysis/budgets/deviation_programme.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <numeric>

namespace kvreplay {
namespace {

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
