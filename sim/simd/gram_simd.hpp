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
  return static_cast<std::size_t>((j * (j + 1) / 2 + i) * kPanelWidth<T> * kPanelWidth<T>);
}

/// Entries of all blocks together.
template <class T>
constexpr std::size_t gram_blocks_size(Index d) {
  return gram_block<T>(0, panels_of<T>(d));
}

/// n rows of a matrix [..][d], by number.
template <class T>
struct ListedRows {
  const T* x = nullptr;
  const Index* rows = nullptr;
  Index n = 0;
  Index d = 0;
};

/// The rows as panels, [ceil(d / W)][n][W].
template <class T>
void pack_rows(const ListedRows<T>& rows, T* panels);

/// blocks += X^T X, the product in T. `next` are the rows that will be packed next: they are fetched from
/// memory meanwhile.
template <class T>
void add_gram(const T* panels, Index rows, Index d, double* blocks, const ListedRows<T>& next = {});

}  // namespace kvreplay
