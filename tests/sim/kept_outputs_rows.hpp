#pragma once

#include "sim/attention.hpp"
#include "tests/support/kept_changes.hpp"

#include <limits>
#include <vector>

namespace kvreplay::test {

/// o_i^M of one row by brute force, [d_v].
inline Vector<double> output_of(const HeadGroup<double>& group, Index g, Index i, const KeptSet& kept) {
  Vector<double> z = attention_logits(group, g, i).z;
  for (std::size_t p = 0; p < kept.size(); ++p)
    if (kept[p] == 0) z[static_cast<Index>(p)] = -std::numeric_limits<double>::infinity();
  return group.v.transpose() * attention_weights(group, g, z);
}

/// Row r of a head's vectors in panels, [d_v].
template <class T>
Vector<double> row_of(const std::vector<T>& panels, Index d_v, Index r) {
  Vector<double> row(d_v);
  for (Index c = 0; c < d_v; ++c) row[c] = panels[panel_entry<T>(c, r, d_v)];
  return row;
}

}  // namespace kvreplay::test
