#pragma once

#include "analysis/report/sections.hpp"

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::report {

/// Comparisons as they are made, and what is said of them.
struct Tally {
  int held = 0, total = 0;
  std::vector<std::string> texts;

  void compare(double less, double more) {  // equal numbers and missing ones are no comparison
    if (std::isnan(less) || std::isnan(more) || less == more) return;
    held += less < more, ++total;
  }
  std::string verdict() const {
    return total == 0 ? "" : held == total ? "yes" : held == 0 ? "no" : "in part";
  }
  std::string text() const { return fmt::format("{}", fmt::join(texts, ", ")); }
};

/// `before` and `behind` are said of the numbers; `otherwise` where they decide nothing.
inline Claim decided(std::string text, const Tally& tally, const char* otherwise,
                     const std::string& before = "", const std::string& behind = "") {
  if (tally.total == 0) return {std::move(text), otherwise, ""};
  return {std::move(text), before + tally.text() + behind, tally.verdict()};
}

/// Those about what kept tokens make up for.
std::vector<Claim> compensation_claims(const Tables& tables);

}  // namespace kvreplay::report
