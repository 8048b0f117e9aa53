#include "analysis/results/paired.hpp"

#include "analysis/results/student.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>

namespace kvreplay {

std::optional<PairedBy> paired_by(Better better, FigureScale scale) {
  if (better == Better::neither) return std::nullopt;
  if (scale == FigureScale::log) return PairedBy::ratio;
  if (has_fixed_range(scale)) return PairedBy::difference;
  return std::nullopt;
}

double Paired::shown(double value) const { return by == PairedBy::ratio ? std::exp(value) : value; }

Paired paired(std::span<const double> left, std::span<const double> right, Better better, PairedBy by) {
  assert(left.size() == right.size());
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
  if (apart.empty() || !std::all_of(apart.begin(), apart.end(), [](double d) { return std::isfinite(d); }))
    return result;
  const auto n = static_cast<double>(apart.size());
  result.mean = std::accumulate(apart.begin(), apart.end(), 0.0) / n;
  if (apart.size() < 2) return result;
  double squares = 0;
  for (const double d : apart) squares += (d - result.mean) * (d - result.mean);
  result.sd = std::sqrt(squares / (n - 1));
  const double error = result.sd / std::sqrt(n), half = interval_t(result.prompts) * error;
  result.low = result.mean - half;
  result.high = result.mean + half;
  result.p = error > 0 ? student_p(result.mean / error, result.prompts - 1) : result.mean == 0 ? 1 : 0;
  return result;
}

void add_paired(CsvFile& csv, const Paired& paired, double p) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  const bool ratio = paired.by == PairedBy::ratio;
  csv.add(ratio ? paired.mean : none).add(ratio ? none : paired.mean);
  csv.add(paired.low).add(paired.high).add(paired.wins).add(p);
}

std::optional<std::ptrdiff_t> prompts_needed(const Paired& paired) {
  constexpr std::ptrdiff_t kMost = 1000;
  constexpr double kPower = 0.8;
  const double size = std::abs(paired.mean);
  if (!(size > 0) || std::isnan(paired.sd)) return std::nullopt;
  for (std::ptrdiff_t n = 2; n <= kMost; ++n) {
    const double found = student_t(2 * kPower - 1, n - 1);  // one-sided
    if ((interval_t(n) + found) * paired.sd / std::sqrt(static_cast<double>(n)) <= size) return n;
  }
  return std::nullopt;
}

std::vector<double> holm(std::span<const double> p) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < p.size(); ++i)
    if (!std::isnan(p[i])) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return p[a] < p[b]; });
  std::vector<double> adjusted(p.begin(), p.end());
  double largest = 0;
  for (std::size_t k = 0; k < order.size(); ++k) {
    largest = std::max(largest, std::min(1.0, static_cast<double>(order.size() - k) * p[order[k]]));
    adjusted[order[k]] = largest;
  }
  return adjusted;
}

}  // namespace kvreplay
