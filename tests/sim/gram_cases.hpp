#pragma once

#include "sim/channels/channel_interaction.hpp"
#include "sim/head_group.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/index_sets.hpp"
#include "tests/support/random_group.hpp"

#include <cmath>
#include <cstdint>
#include <vector>

// Cases for Gram matrices and channel interactions, and what every twin of them is judged by.

namespace kvreplay::test {

/// X^T X, one product after the other.
inline Matrix<double> gram_reference(const Matrix<double>& x, const std::vector<Index>& rows) {
  Matrix<double> sum = Matrix<double>::Zero(x.cols(), x.cols());
  for (const Index r : rows) sum += x.row(r).transpose() * x.row(r);
  return sum;
}

inline Matrix<double> random_matrix(Index rows, Index columns) {
  return random_group({.l = rows, .T = rows, .T_q = 1, .G = 1, .d = columns, .d_v = 1}).k;
}

// Sums of up to some thousand terms in another order.
constexpr Tolerance of_largest(double part) { return {.of_largest = part, .floor = 1.0}; }
constexpr Tolerance kGramDouble = of_largest(1e-13);

inline std::vector<Index> gram_widths() {
  return {1, 2, 5, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128, 129};
}
inline constexpr Index kGramRows = 2600;
/// Rows of a matrix of kGramRows. Tiles end after 128 rows, items after 1024.
inline std::vector<std::vector<Index>> gram_row_lists() {
  return {range(0, 0),   range(7, 8),       range(0, 127),  range(0, 128),  range(0, 129),  range(3, 259),
          range(0, 257), range(0, 2600, 3), range(1, 1025), range(0, 1025), range(0, 2600), {9, 2599, 9, 4}};
}

inline std::vector<GroupSpec> interaction_specs() {
  std::vector<GroupSpec> specs{{},
                               {.G = 1},
                               {.G = 4, .d = 5},
                               {.d = 1},
                               {.T_q = 12, .d = 33},
                               {.T_q = 1},
                               {.l = 1, .T = 1},
                               {.l = 300, .T = 310, .G = 3, .d = 40},
                               {.logit_std = 20, .logit_shift = 200},
                               {.attention_sink = 0},
                               {.sliding_window = 7, .softcap = 5.0}};
  std::uint64_t seed = 700;
  for (GroupSpec& spec : specs) spec.seed = ++seed;
  return specs;
}
inline std::vector<RowRange> interaction_rows(const HeadGroup<double>& group) {
  const Index first = group.first_query(), T = group.T_all();
  return {window_rows(group.l, first, 32), future_rows(group.l, T, first), {first, T}};
}
inline std::vector<std::vector<Index>> interaction_keys(const HeadGroup<double>& group) {
  const Index l = group.l;
  return {range(0, l), range(0, group.T_all(), 3), range(l, l), range(l - 1, l)};
}

/// Channels 7 and 8 all but cancel in every logit: the error of dropping both is `expected`.
struct CancellingPair {
  HeadGroup<float> group;
  std::vector<Index> keys;
  RowRange rows;
  double expected = 0;

  static double error_of(const Matrix<double>& H) { return H(7, 7) + 2 * H(7, 8) + H(8, 8); }
};
inline CancellingPair cancelling_pair() {
  HeadGroup<double> group = random_group({.l = 700, .T = 720, .T_q = 40, .G = 2, .d = 32, .d_v = 8});
  for (Index p = 0; p < group.T_all(); ++p) group.k(p, 7) = -300 * (1 + std::abs(group.k(p, 7)));
  group.k.col(8) = -group.k.col(7);
  group.k(3, 8) *= 1.0001;
  for (HeadMatrix<double>& q : group.q) q.col(8) = q.col(7);
  CancellingPair pair{converted<float>(group), range(0, 700), {680, 700}};
  std::vector<std::uint8_t> dropped(32, 0);
  dropped[7] = dropped[8] = 1;
  pair.expected =
      reconstruction_error_reference(converted<double>(pair.group), pair.keys, pair.rows, dropped);
  return pair;
}

}  // namespace kvreplay::test
