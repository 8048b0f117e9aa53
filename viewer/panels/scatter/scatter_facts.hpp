#pragma once

#include "viewer/work/head_figures.hpp"
#include "viewer/work/scatter.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace kvreplay::viewer {

/// What the scatter panel shows of one head.
struct ScatterFacts {
  std::shared_ptr<const HeadSummary> head;  ///< with its tokens' metrics
  TokenMetric score = TokenMetric::attn, reference = TokenMetric::exact_remove;
  Scatter scatter;
  Agreement agreement{};
  std::vector<std::int32_t> score_place, reference_place;  ///< how many tokens come before, [l]

  double score_of(Index token) const { return (*head->tokens)[score](0, token); }
  double reference_of(Index token) const { return (*head->tokens)[reference](0, token); }
};
std::size_t bytes_of(const ScatterFacts& facts);

/// Both metrics must be there. `log`: axes are logarithmic where they can be.
ScatterFacts scatter_facts(std::shared_ptr<const HeadSummary> head, TokenMetric score, TokenMetric reference,
                           bool log);

}  // namespace kvreplay::viewer
