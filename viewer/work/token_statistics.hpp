#pragma once

#include "viewer/work/head_figures.hpp"

#include <optional>
#include <span>
#include <vector>

// What the inspector says of single tokens and of tokens chosen together.

namespace kvreplay::viewer {

/// The place of one of the values among all, from 1 (the largest) on; equal ones rank the lower position
/// first, NaN after all others.
Index rank_of(std::span<const double> values, Index position);
/// The `most` largest of some positions, the largest first, ranked likewise; NaN is left out.
std::vector<Index> largest_of(std::span<const double> values, std::span<const Index> positions,
                              std::size_t most);

/// A metric of one token.
struct TokenFigure {
  TokenMetric metric = TokenMetric::attn;
  double value = 0;
  Index rank = 0;    ///< among the l candidates
  double share = 0;  ///< of the sum over all candidates; NaN where a value is negative or the sum is 0
};
/// Of the metrics that the summary has, in their order; empty for a position that is no candidate, or for a
/// summary without tokens.
std::vector<TokenFigure> figures_of_token(const HeadSummary& summary, Index token);

/// A metric's sum over tokens chosen together.
struct SelectionFigure {
  TokenMetric metric = TokenMetric::attn;
  double sum = 0;
  double share = 0;  ///< as TokenFigure::share
};
/// Positions that are no candidates are left out.
std::vector<SelectionFigure> figures_of_tokens(const HeadSummary& summary, std::span<const Index> tokens);

}  // namespace kvreplay::viewer
