#pragma once

#include "analysis/eviction/evict_stage.hpp"
#include "analysis/results/figure_table.hpp"
#include "analysis/tokens/token_agreement.hpp"

#include <span>
#include <vector>

// Tables of figures that were just computed, as those of a result folder: for findings without files.

namespace kvreplay {

/// agreement.csv of `kvreplay tokens` over these heads of l candidates, one a layer of `layers` and KV head,
/// on a window of as many rows. The heads of `table` are in that order.
FigureTable agreement_figures(const AgreementTable& table, const std::vector<Index>& layers, Index n_kv,
                              Index l, Index window);

/// evictions.csv of `kvreplay evict`.
FigureTable eviction_figures(const EvictStage& stage, const HeadFigures& figures);

}  // namespace kvreplay
