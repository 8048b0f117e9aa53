#pragma once

#include <cstddef>
#include <vector>

namespace kvreplay {

using Index = std::ptrdiff_t;

/// a / b, rounded up.
constexpr Index div_up(Index a, Index b) { return (a + b - 1) / b; }

/// Width of a panel. Operands that a product reads by whole rows are stored in panels of this many columns,
/// each panel row-major: two vectors of AVX-512, a whole number of vectors everywhere.
template <class T>
inline constexpr Index kPanelWidth = 128 / static_cast<Index>(sizeof(T));

template <class T>
constexpr Index panels_of(Index columns) {
  return div_up(columns, kPanelWidth<T>);
}

/// Index of a matrix entry in panels, [panels][rows][W].
template <class T>
constexpr std::size_t panel_entry(Index row, Index column, Index rows) {
  constexpr Index W = kPanelWidth<T>;
  return static_cast<std::size_t>((column / W * rows + row) * W + column % W);
}

/// Vectors of every row and query head of a group, in panels of W = kPanelWidth<T> rows: G of
/// [panels][d_v][W], 0 in the padding.
template <class T>
using PanelRows = std::vector<std::vector<T>>;

}  // namespace kvreplay
