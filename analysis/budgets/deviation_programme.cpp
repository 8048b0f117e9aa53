#include "analysis/budgets/deviation_programme.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace kvreplay {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

/// The least cost of one token more (direction 1) or less (-1) among a head's choices; kNever without one.
std::int64_t least_slope(const std::vector<Deviation>& choices, std::int32_t direction) {
  std::int64_t least = kNever;
  for (const Deviation& choice : choices)
    if (choice.tokens * direction > 0) least = std::min(least, choice.cost / (choice.tokens * direction));
  return least;
}

}  // namespace

DeviationProgramme::DeviationProgramme(const std::vector<std::vector<Deviation>>& choices, Index spare,
                                       std::int64_t slack_cost, std::int64_t gap)
    : choices_(choices), spare_(spare), slack_cost_(slack_cost), gap_(gap) {
  order_heads();
}

void DeviationProgramme::order_heads() {
  // Heads that deviate cheaply first: the bounds on what is left are then tight from early on.
  std::vector<std::int64_t> cheapest(choices_.size());
  for (std::size_t h = 0; h < choices_.size(); ++h) {
    cheapest[h] = std::min(least_slope(choices_[h], 1), least_slope(choices_[h], -1));
    if (choices_[h].size() > 1) heads_.push_back(h);
  }
  std::stable_sort(heads_.begin(), heads_.end(),
                   [&](std::size_t a, std::size_t b) { return cheapest[a] < cheapest[b]; });

  behind_.resize(heads_.size() + 1);
  behind_.back() = {slack_cost_, kNever, 0};
  for (std::size_t s = heads_.size(); s-- > 0;) {
    const auto& choices = choices_[heads_[s]];
    behind_[s] = {std::min(behind_[s + 1].up, least_slope(choices, 1)),
                  std::min(behind_[s + 1].down, least_slope(choices, -1)),
                  behind_[s + 1].lowest + choices.front().tokens};
  }
}

bool DeviationProgramme::can_close(std::int64_t sum, std::int64_t cost, const Behind& behind) const {
  const std::int64_t room = gap_ - cost, missing = spare_ - sum;
  if (room < 0) return false;
  if (missing == 0) return true;
  // missing * slope <= room, without the product, which may overflow
  if (missing > 0) return behind.up == 0 || missing <= room / behind.up;
  return missing >= behind.lowest && (behind.down == 0 || -missing <= room / behind.down);
}

void DeviationProgramme::extend(std::size_t stage) {
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

std::optional<std::vector<std::int32_t>> DeviationProgramme::solve() {
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

}  // namespace kvreplay
