#include "analysis/results/student.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <numbers>

namespace kvreplay {
namespace {

constexpr std::ptrdiff_t kMostFreedom = 1'000'000;

/// P(|T| <= sqrt(freedom) tan(angle)): Abramowitz and Stegun, 26.7.3 and 26.7.4.
double share_within(double angle, std::ptrdiff_t freedom) {
  const double sine = std::sin(angle), cosine = std::cos(angle);
  const bool odd = freedom % 2 == 1;
  if (freedom == 1) return 2 / std::numbers::pi * angle;
  double term = odd ? cosine : 1, sum = term;
  for (std::ptrdiff_t k = odd ? 2 : 1; k <= freedom - 3; k += 2) {
    term *= static_cast<double>(k) / static_cast<double>(k + 1) * cosine * cosine;
    sum += term;
  }
  return odd ? 2 / std::numbers::pi * (angle + sine * sum) : sine * sum;
}

}  // namespace

double student_t(double share, std::ptrdiff_t freedom) {
  assert(share > 0 && share < 1 && freedom >= 1);
  freedom = std::min(freedom, kMostFreedom);
  double low = 0, high = std::numbers::pi / 2;
  for (int step = 0; step < 60; ++step) {
    const double middle = low + (high - low) / 2;
    (share_within(middle, freedom) < share ? low : high) = middle;
  }
  return std::sqrt(static_cast<double>(freedom)) * std::tan(high);
}

double interval_t(std::ptrdiff_t n) {
  static const std::array<double, 256> known = [] {  // most figures share their n
    std::array<double, 256> t{};
    for (std::size_t i = 2; i < t.size(); ++i)
      t[i] = student_t(kConfidence, static_cast<std::ptrdiff_t>(i) - 1);
    return t;
  }();
  return n < std::ssize(known) ? known[n] : student_t(kConfidence, n - 1);
}

double student_p(double t, std::ptrdiff_t freedom) {
  if (std::isnan(t)) return t;
  freedom = std::min(freedom, kMostFreedom);
  const double angle = std::atan(std::abs(t) / std::sqrt(static_cast<double>(freedom)));
  return std::clamp(1 - share_within(angle, freedom), 0.0, 1.0);
}

}  // namespace kvreplay
