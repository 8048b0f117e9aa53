#pragma once

#include "analysis/run/ranks.hpp"
#include "analysis/run/run.hpp"
#include "data/dump.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace kvreplay {

using Stages = std::vector<std::unique_ptr<Stage>>;

std::size_t figures_per_head(const Stages& stages);
/// Of all heads of a layer, and of the layer as a whole.
std::size_t figures_of_layer(const Stages& stages, Index n_kv);

/// One pass of `stages` over a dump.
struct LayerPass {
  const Dump& dump;
  const Stages& stages;
  const RunOptions& options;
  int number;  ///< from 1
  const ResultFolder& folder;
  Workers& workers;
  Ranks& ranks;
};

/// Computes those of `layers` that the folder does not hold yet, and returns how many these were. Their head
/// groups, in order, are cut into as many intervals of equal cost as there are ranks. A layer belongs to the
/// rank that has its first head: that one gets the other heads from the ranks that computed them, ends the
/// layer and writes its files. All ranks call it; when it returns all layers are in the folder.
Index pass_over_layers(const LayerPass& pass, const std::vector<Index>& layers);

/// The figures of all of `layers` from the folder, for each stage.
std::vector<HeadFigures> gather_figures(const LayerPass& pass, const std::vector<Index>& layers);

/// What a head group of this layer costs, in multiply-adds: every query of it reads the keys and values that
/// it sees. All groups of a layer cost the same.
double head_group_cost(const Dump& dump, Index layer);

/// Cuts a sequence of costs into `parts` intervals of about equal cost: [parts + 1] bounds, ascending, the
/// first 0 and the last costs.size(). No interval costs more than its share and one item.
std::vector<std::size_t> equal_intervals(std::span<const double> costs, int parts);

}  // namespace kvreplay
