#pragma once

#include "sim/head_group.hpp"

#include <span>
#include <vector>

namespace kvreplay {

/// The figures that a stage kept of every head: row s * n_kv + g is KV head g of the s-th layer of `layers`.
struct HeadFigures {
  std::vector<Index> layers;
  Index n_kv = 0;
  Matrix<double> values;
  std::vector<double> of_layers;  ///< those of the layers as a whole, added up over `layers` in their order
};

/// The figures of one layer: [n_kv, figures_per_head] and [figures_per_layer].
struct LayerFigures {
  Eigen::Ref<Matrix<double>> heads;
  std::span<double> whole;
};

}  // namespace kvreplay
