#include "viewer/model/playback.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace kvreplay::viewer {
namespace {

constexpr Index kAround = 16;
constexpr double kSpike = 2;

bool is_spike(std::span<const double> error, Index step) {
  const double here = error[step];
  const auto not_above = [&](Index other) {
    return other < 0 || other >= std::ssize(error) || !(error[other] >= here);
  };
  if (!std::isfinite(here) || !not_above(step - 1) || !not_above(step + 1)) return false;
  std::vector<double> around;
  for (Index s = std::max<Index>(step - kAround, 0); s <= std::min(step + kAround, std::ssize(error) - 1);
       ++s)
    if (s != step && std::isfinite(error[s])) around.push_back(error[s]);
  if (around.empty()) return false;
  const auto middle = around.begin() + std::ssize(around) / 2;
  std::nth_element(around.begin(), middle, around.end());
  return here > kSpike * *middle;
}

}  // namespace

Index Playback::advance(Index step, Index steps, Clock::time_point now) {
  if (!since_) return step;
  Index due = (now - *since_) / kStep;
  if (now - *since_ > std::chrono::seconds(1)) {
    due = 1;
    since_ = now;
  } else {
    *since_ += due * kStep;
  }
  step = std::min(step + due, steps - 1);
  if (step >= steps - 1) pause();
  return step;
}

std::optional<Playback::Clock::time_point> Playback::due() const {
  return since_ ? std::optional(*since_ + kStep) : std::nullopt;
}

std::optional<Index> next_spike(std::span<const double> error, Index step, bool forward) {
  for (Index s = forward ? step + 1 : step - 1; s >= 0 && s < std::ssize(error); s += forward ? 1 : -1)
    if (is_spike(error, s)) return s;
  return std::nullopt;
}

}  // namespace kvreplay::viewer
