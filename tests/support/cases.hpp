#pragma once

#include "tests/support/random_group.hpp"

#include <string>
#include <vector>

namespace kvreplay::test {

/// One set-up on which a fast twin must agree with the reference, and which a benchmark may time.
struct TokenCase {
  std::string name;
  GroupSpec spec;
  TokenOptions options;  ///< its metrics are those that the group can give

  HeadGroup<double> group() const { return random_group(spec); }
};

/// Small and unkind: sinks, large logits, odd sizes, single rows and tokens, every attention rule.
const std::vector<TokenCase>& small_token_cases();

/// Rows that one token, or the sink logit, holds next to all of: squares of all other weights are beyond
/// float32.
const std::vector<TokenCase>& held_token_cases();

/// Lengths and widths at, one below and one above what a tile may measure (32 to 256).
const std::vector<TokenCase>& large_token_cases();

}  // namespace kvreplay::test
