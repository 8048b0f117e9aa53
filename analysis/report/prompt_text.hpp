#pragma once

#include "analysis/results/metric_table.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Cost of a prompt's tokens and the policies that keep them, in a form small enough for a page.

namespace kvreplay::report {

/// Tokens of a prompt that a page shows at most, and those of one passage of a longer prompt.
inline constexpr Index kMostShown = 8192, kPassage = 64;

/// A range of heads, numbered through all layers.
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
  Index tokens = 0;                      ///< candidates a head
  std::vector<std::string> text;         ///< of each of them
  std::vector<Index> shown;              ///< ascending
  Index heads = 0, kept_heads = 0;       ///< rows of the arrays of tokens and of kept sets, in all layers
  std::vector<TextScope> scopes;         ///< all heads, and the others where there is room for them
  std::vector<TextMetric> metrics;       ///< the one to show first, then the most informative first
  std::vector<TextPolicy> policies;      ///< the best that can run, the best oracle, the others
  std::string budget, semantics, phase;  ///< of the policies; empty without them
};
/// The prompt under the middle budget. Without text, and without anything else, if the dump has no text or
/// does not exist any more. `most_digits` bounds the size of scopes other than all heads. Throws InputError
/// for an array that is not as expected.
PromptText prompt_text(const Tables& tables, double most_digits = 1.2e6);

/// Tint of a rank (1: the largest of l values): 63 for rank 1, falling evenly with the rank's logarithm to 1
/// for rank l.
Index level_of_rank(Index rank, Index l);
/// First and last rank of each level; {0, 0} if no rank has it.
std::array<std::pair<Index, Index>, 64> ranks_of_levels(Index l);
/// 0 (none) to 7; level 0 is no value.
Index tint_of_level(Index level);

/// Tokens that a page shows, by their `ranks` (0: the largest). All if they are no more than `most`; else
/// whole passages, at most `most` tokens in all: the first, the last, and those of the largest tokens. `most`
/// is two passages at least.
std::vector<Index> shown_tokens(const std::vector<Index>& ranks, Index most);

/// A token within flowing text: line breaks and tabs have a visible sign before them; other control
/// characters and bytes that are no UTF-8 are written out.
std::string flowing_text(std::string_view token);

/// Number of leading texts that fit, one after another, into `lines` lines of `width` characters.
std::size_t fitting(const std::vector<std::string>& texts, Index lines, Index width);

/// "error if its key became 0, to first order (key)"; a score of the user's as it is called.
std::string named_metric(const std::string& name);
/// "keys of small norm (knorm)", "attention of the window, pooled, by ... (snapkv+caote)".
std::string named_policy(const std::string& name);

}  // namespace kvreplay::report
