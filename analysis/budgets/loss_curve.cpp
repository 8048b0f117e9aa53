#include "analysis/budgets/loss_curve.hpp"

#include "analysis/results/agreement.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>

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
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t a, std::int32_t b) { return gain[a] > gain[b]; });
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
  std::sort(blocks_.begin(), blocks_.end(), [](const HullBlock& a, const HullBlock& b) {
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

}  // namespace kvreplay
