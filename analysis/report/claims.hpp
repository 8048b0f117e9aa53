#pragma once

#include "analysis/report/sections.hpp"

#include <string>
#include <vector>

namespace kvreplay::report {

/// A claim of a paper and what the results say of it.
struct Claim {
  std::string text;
  std::string measured;  ///< the numbers; where nothing is decided, what that would take
  std::string verdict;   ///< "yes", "in part", "no"; empty where the results do not decide it
};

/// The claims that the tables of one folder can decide, in the order of the analyses.
std::vector<Claim> claims_of(const Tables& tables);

}  // namespace kvreplay::report
