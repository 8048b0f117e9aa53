#pragma once

#include "sim/eviction/kept_outputs.hpp"

#include <cmath>
#include <vector>

namespace kvreplay {

// What verify takes from each head group, and what it allows, as shares of the full output's norm.
inline constexpr Index kVerifiedRows = 32;  ///< of each row set: brute force is slow
inline constexpr double kOutputTolerance = 1e-9, kFloat32OutputTolerance = 1e-4;

/// The norm of the difference between vectors in panels and others in rows, over all query heads.
template <class T>
double distance(const PanelRows<T>& panels, const std::vector<Matrix<double>>& rows) {
  double square = 0;
  for (std::size_t g = 0; g < rows.size(); ++g)
    for (Index r = 0; r < rows[g].rows(); ++r)
      for (Index c = 0; c < rows[g].cols(); ++c) {
        const T found = panels[g][panel_entry<T>(c, r, rows[g].cols())];
        const double off = static_cast<double>(found) - rows[g](r, c);
        square += off * off;
      }
  return std::sqrt(square);
}

}  // namespace kvreplay
