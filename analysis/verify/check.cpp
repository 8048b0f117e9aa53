#include "analysis/verify/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay {

namespace {

/// A NaN without its sign: "-nan" says nothing.
double shown(double value) { return std::isnan(value) ? std::abs(value) : value; }

}  // namespace

void ValueDistance::add(Index layer, Index kv_head, TokenMetric metric, const std::vector<Index>& tokens,
                        const std::vector<double>& values, const std::vector<double>& reference,
                        double rounding) {
  const double tiny = std::max(tolerance_.tiny, rounding);
  double largest = 0;
  for (const double r : reference) largest = std::max(largest, std::abs(r));
  Index misses = 0;
  double worst_excess = -1;
  std::string worst_line;
  for (std::size_t t = 0; t < reference.size(); ++t) {
    const bool equal =
        values[t] == reference[t] || (std::abs(values[t]) <= tiny && std::abs(reference[t]) <= tiny);
    const double error = equal ? 0 : std::abs(values[t] - reference[t]);
    const double of_largest = error == 0 ? 0 : error / largest;
    const bool counts = std::abs(reference[t]) > tolerance_.floor * largest;
    const double relative = error == 0 || !counts ? 0 : error / std::abs(reference[t]);
    worst_of_largest_ = worse(worst_of_largest_, of_largest);
    worst_relative_ = worse(worst_relative_, relative);
    if (of_largest <= tolerance_.of_largest && relative <= tolerance_.relative) continue;
    ++misses;
    const double excess = std::max(of_largest / tolerance_.of_largest, relative / tolerance_.relative);
    if (misses > 1 && !(excess > worst_excess)) continue;
    worst_excess = excess;
    worst_line = fmt::format(
        "layer {} KV head {} token {} metric {}: {:.17g}, expected {:.17g} ({:.1e} of the largest, "
        "tolerance {:g}; {:.1e} relative, tolerance {:g})",
        layer, kv_head, tokens[t], name_of(metric), shown(values[t]), shown(reference[t]), shown(of_largest),
        tolerance_.of_largest, shown(relative), tolerance_.relative);
  }
  if (misses > 1) worst_line += fmt::format("; {} more tokens of this head miss it", misses - 1);
  if (misses > 0) failures_.push_back(worst_line);
}

void ValueDistance::merge(const ValueDistance& later) {
  worst_of_largest_ = worse(worst_of_largest_, later.worst_of_largest_);
  worst_relative_ = worse(worst_relative_, later.worst_relative_);
  failures_.insert(failures_.end(), later.failures_.begin(), later.failures_.end());
}

Check ValueDistance::check(const std::string& name, const std::string& covered) const {
  Check check{.name = name, .covered = covered};
  check.worst = fmt::format("worst {:.1e} of the largest (tolerance {:g}), {:.1e} relative ({:g})",
                            worst_of_largest_, tolerance_.of_largest, worst_relative_, tolerance_.relative);
  for (const std::string& failure : failures_) check.failures.push_back(name + ": " + failure);
  check.figures = {{"worst_of_largest", worst_of_largest_},
                   {"tolerance_of_largest", tolerance_.of_largest},
                   {"worst_relative", worst_relative_},
                   {"tolerance_relative", tolerance_.relative},
                   {"relative_above", tolerance_.floor}};
  return check;
}

}  // namespace kvreplay
