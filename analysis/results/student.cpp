#include "analysis/results/student.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numbers>

namespace kvreplay {
namespace {

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
  freedom = std::min<std::ptrdiff_t>(freedom, 1'000'000);
  double low = 0, high = std::numbers::pi / 2;
  for (int step = 0; step < 60; ++step) {
    const double middle = low + (high - low) / 2;
    (share_within(middle, freedom) < share ? low : high) = middle;
  }
  return std::sqrt(static_cast<double>(freedom)) * std::tan(high);
}

}  // namespace kvreplay
