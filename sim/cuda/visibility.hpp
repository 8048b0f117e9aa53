#pragma once

#include "sim/cuda/transfer.hpp"
#include "sim/head_group.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <vector>

namespace kvreplay::cuda {

/// The tokens [first, end) that each of some rows sees: [rows], both ascending.
struct Visibility {
  std::vector<int> first, end;

  /// Tokens that the rows [from, to) see among them.
  Index width(Index from, Index to) const { return end[to - 1] - first[from]; }
};

inline Visibility visibility(const HeadGroup<float>& group, Rows rows) {
  Visibility seen;
  for (Index i = rows.begin; i < rows.end; ++i) {
    seen.first.push_back(narrow(group.first_visible(i)));
    seen.end.push_back(narrow(group.end_visible(i)));
  }
  return seen;
}

}  // namespace kvreplay::cuda
