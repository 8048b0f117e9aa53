#include "analysis/results/paired.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <numbers>
#include <numeric>

namespace kvreplay {
namespace {

/// The questions in the order in which Holm asks them: by p, those without one left out.
std::vector<std::size_t> by_p(std::span<const double> p) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < p.size(); ++i)
    if (!std::isnan(p[i])) order.push_back(i);
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return p[a] < p[b]; });
  return order;
}

/// The number of prompts at which a single difference is significant at this level, with a power of 0.8.
std::optional<std::ptrdiff_t> prompts_needed(const Paired& paired, double level) {
  constexpr std::ptrdiff_t kMost = 1000;
  constexpr double kPower = 0.8;
  const double size = std::abs(paired.mean);
  if (!(size > 0)) return std::nullopt;
  const auto enough = [&](std::ptrdiff_t n) {
    const double found = student_t(2 * kPower - 1, n - 1);  // one-sided
    return (student_t(1 - level, n - 1) + found) * paired.sd / std::sqrt(static_cast<double>(n)) <= size;
  };
  if (!enough(kMost)) return std::nullopt;
  std::ptrdiff_t too_few = kFewestPrompts - 1, most = kMost;
  while (most - too_few > 1) {
    const std::ptrdiff_t middle = too_few + (most - too_few) / 2;
    (enough(middle) ? most : too_few) = middle;
  }
  return most;
}

}  // namespace

std::optional<PairedBy> paired_by(Better better, FigureScale scale) {
  if (better == Better::neither) return std::nullopt;
  if (scale == FigureScale::log) return PairedBy::ratio;
  if (has_fixed_range(scale)) return PairedBy::difference;
  return std::nullopt;
}

double Paired::shown(double value) const { return by == PairedBy::ratio ? std::exp(value) : value; }

Paired paired(std::span<const double> left, std::span<const double> right, Better better, FigureScale scale) {
  assert(left.size() == right.size() && paired_by(better, scale));
  const PairedBy by = *paired_by(better, scale);
  Paired result;
  result.by = by;
  std::vector<double> apart;
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (std::isnan(left[i]) || std::isnan(right[i])) continue;
    ++result.prompts;
    if (left[i] != right[i])
      ++((left[i] < right[i]) == (better == Better::smaller) ? result.wins : result.losses);
    apart.push_back(left[i] == right[i]     ? 0
                    : by == PairedBy::ratio ? std::log(left[i] / right[i])
                                            : left[i] - right[i]);
  }
  if (apart.empty() || !std::ranges::all_of(apart, [](double d) { return std::isfinite(d); })) return result;
  const auto n = static_cast<double>(apart.size());
  result.mean = std::accumulate(apart.begin(), apart.end(), 0.0) / n;
  if (apart.size() < 2) return result;
  double squares = 0;
  for (const double d : apart) squares += (d - result.mean) * (d - result.mean);
  result.sd = std::sqrt(squares / (n - 1));
  if (result.prompts < kFewestPrompts) return result;
  const double error = result.sd / std::sqrt(n), half = interval_t(result.prompts) * error;
  const FigureRange range = range_of(scale);
  const double furthest =
      by == PairedBy::ratio ? std::numeric_limits<double>::infinity() : range.high - range.low;
  result.low = std::max(result.mean - half, -furthest);
  result.high = std::min(result.mean + half, furthest);
  result.p = error > 0 ? student_p(result.mean / error, result.prompts - 1) : result.mean == 0 ? 1 : 0;
  return result;
}

void add_paired(CsvTable& csv, const Paired& paired, double p) {
  const bool ratio = paired.by == PairedBy::ratio;
  csv.add(ratio ? paired.mean : kNan).add(ratio ? kNan : paired.mean);
  csv.add(paired.low).add(paired.high).add(paired.wins).add(p);
}

std::vector<double> holm(std::span<const double> p) {
  const std::vector<std::size_t> order = by_p(p);
  std::vector<double> adjusted(p.begin(), p.end());
  double largest = 0;
  for (std::size_t k = 0; k < order.size(); ++k) {
    largest = std::max(largest, std::min(1.0, static_cast<double>(order.size() - k) * p[order[k]]));
    adjusted[order[k]] = largest;
  }
  return adjusted;
}

std::vector<std::optional<std::ptrdiff_t>> prompts_needed(std::span<const Paired> asked) {
  std::vector<double> p;
  for (const Paired& one : asked) p.push_back(one.p);
  const std::vector<std::size_t> order = by_p(p);
  std::vector<std::optional<std::ptrdiff_t>> needed(asked.size());
  std::ptrdiff_t most = kFewestPrompts;
  for (std::size_t k = 0; k < order.size(); ++k) {
    const auto alone = prompts_needed(asked[order[k]], kToldApart / static_cast<double>(order.size() - k));
    if (!alone) break;
    needed[order[k]] = most = std::max(most, *alone);
  }
  return needed;
}

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
