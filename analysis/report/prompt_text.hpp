#pragma once

#include "analysis/results/figure_table.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// What the tokens of a prompt cost and who keeps them, as small as a page can carry it.

namespace kvreplay::report {

/// Tokens of a prompt that a page shows at most, and those of one passage of a longer prompt.
inline constexpr Index kMostShown = 8192, kPassage = 64;

/// Heads from, to: those of all layers are counted through.
struct TextScope {
  std::string name;  ///< "all heads", "layer 3, all heads", "layer 3, head 1"
  Index from = 0, to = 0;
};

struct TextMetric {
  std::string name;
  std::vector<double> values;       ///< [shown] summed over all heads that have one; NaN where none has
  std::vector<std::string> levels;  ///< [scope], a digit of base64 for each token shown: level_of_rank()
};

struct TextPolicy {
  std::string name;
  std::vector<std::uint16_t> kept;  ///< [shown]: by how many of the heads
  /// [head], of the tokens shown, six to a digit of base64, the first in its lowest bit; empty where a page
  /// has no room for heads.
  std::vector<std::string> heads;
};

struct PromptText {
  Index tokens = 0;                  ///< candidates a head
  std::vector<std::string> text;     ///< of each of them
  std::vector<Index> shown;          ///< ascending
  Index heads = 0, kept_heads = 0;   ///< rows of the arrays of tokens and of kept sets, in all layers
  std::vector<TextScope> scopes;     ///< all heads, and the others where there is room for them
  std::vector<TextMetric> metrics;   ///< the one to show first, then as more room is given to what says more
  std::vector<TextPolicy> policies;  ///< the best that can run, the best oracle, the others
  std::string budget, semantics, phase;  ///< of the policies; empty without them
};
/// The prompt under the middle budget. Without text where the dump has none or is not there any more; then
/// nothing else is read. `most_digits` bounds what scopes other than all heads take. Throws InputError where
/// an array is not what it should be.
PromptText prompt_text(const Tables& tables, double most_digits = 1.2e6);

/// What tint a rank has, 1 the largest of l values: 63 for rank 1, falling evenly with its logarithm to 1 for
/// rank l.
Index level_of_rank(Index rank, Index l);
/// For each level the ranks that have it, first and last; {0, 0} where none has.
std::array<std::pair<Index, Index>, 64> ranks_of_levels(Index l);
/// 0 (none) to 7; level 0 is no value.
Index tint_of_level(Index level);

/// The tokens that a page shows by their `ranks`, 0 the largest: all where they are no more than `most`; else
/// whole passages, the first, the last, and those of the largest tokens, that together have no more. `most`
/// is two passages at least.
std::vector<Index> shown_tokens(const std::vector<Index>& ranks, Index most);

/// A token within flowing text: what breaks a line and what moves on to a tab stop has a sign before it,
/// other control characters and what is no UTF-8 are written out.
std::string flowing_text(std::string_view token);

/// How many of these texts, one after another, take no more than so many lines of so many characters.
std::size_t fitting(const std::vector<std::string>& texts, Index lines, Index width);

/// "error if its key became 0, to first order (key)"; a score of the user's as it is called.
std::string named_metric(const std::string& name);
/// "keys of small norm (knorm)", "attention of the window, pooled, by ... (snapkv+caote)".
std::string named_policy(const std::string& name);

}  // namespace kvreplay::report
