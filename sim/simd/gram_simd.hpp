#pragma once

#include "sim/simd/panel.hpp"

#include <cstddef>

// X^T X of a matrix [rows][d] that lies in panels, [ceil(d / W)][rows][W], W = kPanelWidth<T>, 0 in the
// padding. Of the product's W x W blocks only those on and above the diagonal are formed: (i, j) with i <= j
// in the order (0, 0), (0, 1), (1, 1), (0, 2), ...; what they hold below the diagonal is of no meaning.

namespace kvreplay {

/// Where block (i, j), i <= j, of [W][W] entries begins.
template <class T>
constexpr std::size_t gram_block(Index i, Index j) {
  return (j * (j + 1) / 2 + i) * kPanelWidth<T> * kPanelWidth<T>;
}

/// Entries of all blocks together.
template <class T>
constexpr std::size_t gram_blocks_size(Index d) {
  return gram_block<T>(0, panels_of<T>(d));
}

/// blocks += X^T X, the product in the numbers' own type.
void add_gram(const float* panels, Index rows, Index d, double* blocks);
void add_gram(const double* panels, Index rows, Index d, double* blocks);
/// Adds to blocks (0, j) to (j, j) alone, which lie behind one another.
void add_gram_column(const double* panels, Index rows, Index j, double* blocks);

}  // namespace kvreplay
