#pragma once

#include "sim/head_group.hpp"
#include "sim/schedule.hpp"
#include "sim/simd/panel.hpp"

#include <cstddef>
#include <functional>
#include <vector>

namespace kvreplay {

// X^T X of a matrix [rows][d] in panels, [ceil(d / W)][rows][W], W = kPanelWidth<T>, 0 in the padding. Only
// the W x W blocks on and above the diagonal are computed: (i, j) with i <= j in the order (0, 0), (0, 1),
// (1, 1), (0, 2), ... Their entries below the diagonal have no meaning.

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

/// Rows that a sum in T runs over: two panels of them fit the first cache.
inline constexpr Index kGramTile = 128;

/// Rows of an item of a loop over n: whole tiles, from n alone.
Index gram_item_rows(Index n);

/// X^T X of n rows of d numbers in float64. An item of the loop has `per_item` rows (whole tiles); the items'
/// sums are added in order. fill(first, count, panels) writes the rows first .. first + count - 1, a tile, in
/// the layout of add_gram(); numbers in the padding are ignored.
Matrix<double> gram_of_rows(Index n, Index d, Index per_item,
                            const std::function<void(Index first, Index count, double* panels)>& fill,
                            Workers& workers);

/// X^T X of the rows rows_of(first, count), [count, d], of which there are too few or too wide for sums of an
/// item's own: a thousand of them lie packed, and an item has blocks of the product.
Matrix<double> gram_of_rows(Index n, Index d,
                            const std::function<Matrix<double>(Index first, Index count)>& rows_of,
                            Workers& workers);

/// a b^T. Each expression that is multiplied takes Eigen a second or more to compile; and of all copies of
/// its kernel a program has the first that the linker meets: one without optimisation, if others than sim had
/// some.
template <class T>
Matrix<T> row_products(const Eigen::Ref<const Matrix<T>>& a, const Eigen::Ref<const Matrix<T>>& b);

/// Eigenvalues of a symmetric matrix, smallest first: [d].
Vector<double> eigenvalues(const Matrix<double>& H);
/// The eigenvector of the largest, of either sign: [d].
Vector<double> main_direction(const Matrix<double>& H);

/// Blocks of X^T X as they come from the items of a loop: one sum an item.
using GramSums = std::vector<std::vector<double>>;

/// The sum over the items, in their order, as the symmetric matrix [d, d]: each entry above the diagonal
/// stands below it too. An item that left nothing is an empty vector.
template <class T>
Matrix<double> total_gram(const GramSums& sums, Index d, Workers& workers);

}  // namespace kvreplay
