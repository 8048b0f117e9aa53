#pragma once

#include "analysis/options/option.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace kvreplay {

/// The verdict on one thing that was checked.
struct Check {
  std::string name;     ///< "closed forms"
  std::string covered;  ///< "12 heads x 64 tokens x 6 metrics"
  std::string worst;    ///< the largest deviation and its tolerance, or why the check was left out
  bool skipped = false;
  std::vector<std::string> failures;
  Json figures;  ///< the same as numbers
  bool ok() const { return failures.empty(); }
};

/// The larger of two deviations; NaN is worse than any, and has no sign: "-nan" says nothing.
inline double worse(double a, double b) {
  return std::isnan(a) || std::isnan(b) ? std::numeric_limits<double>::quiet_NaN() : std::max(a, b);
}

/// A check of which nothing was computed.
inline Check left_out(const std::string& name, const std::string& why) {
  return {.name = name,
          .covered = {},
          .worst = "left out: " + why,
          .skipped = true,
          .failures = {},
          .figures = {}};
}

}  // namespace kvreplay
