#pragma once

#include "analysis/options/option.hpp"
#include "sim/eviction/policy.hpp"

#include <optional>
#include <string>

namespace kvreplay {

/// The budget of a cache, as it was asked for: a number of tokens, or a compression ratio. 0: nothing is
/// evicted.
struct Budget {
  std::optional<Index> tokens;
  double sigma = 0;
  const OptionFacts* asked_by = nullptr;  ///< null: by none that messages could name
  bool evicts() const { return tokens || sigma > 0; }
  /// The tokens kept of l; as many as were asked for, even where these are more.
  Index kept(Index l, Semantics semantics) const {
    return tokens ? *tokens : kept_tokens(sigma, l, semantics);
  }
  double ratio(Index l) const;  ///< of compression, where tokens were asked for, too
  std::string label() const;    ///< "80" or "0.9": tokens are whole, a ratio never is
  bool operator==(const Budget& other) const { return tokens == other.tokens && sigma == other.sigma; }
};

}  // namespace kvreplay
