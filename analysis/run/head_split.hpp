#pragma once

#include "data/dump.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace kvreplay {

/// What a head group of this layer costs, in multiply-adds: every query of it reads the keys and values that
/// it sees. All groups of a layer cost the same.
double head_group_cost(const Dump& dump, Index layer);

/// Cuts a sequence of costs into `parts` intervals of about equal cost: [parts + 1] bounds, ascending, the
/// first 0 and the last costs.size(). No interval costs more than its share and one item.
std::vector<std::size_t> equal_intervals(std::span<const double> costs, int parts);

}  // namespace kvreplay
