#pragma once

#include "sim/head_group.hpp"
#include "sim/schedule.hpp"
#include "sim/tokens/column_totals.hpp"

#include <vector>

// exact_loss and oracle_loss: predicted loss, in nats, if one token alone is removed.

namespace kvreplay {

/// The losses at one query head, over a set of rows, each [l].
struct LossTotals {
  Vector<double> loss;  ///< sum over the rows of 1/2 mean_s (g_is . (o_i' - o_i))^2, o_i' without the token
  Vector<double> max_attn;  ///< the largest weight that any of the rows gives the token
};

/// The totals of every query head, [G]; `rows` are among the gradients'. With a the token's weight g . (o' -
/// o) = a / (1 - a) (g . o - g . v): one more product V G^T, of S rows for each query. The column of a row
/// that may have a > 1/2 is taken from what remains of the row without it. Cost: (4 + 2 S) G |rows| l d
/// flops, 6 for 4 where a panel's logits are more than `most_logits` bytes; memory beside them O(l d_v + S G
/// |rows| d_v); the same bytes for any number of threads. Throws InputError where a number overflows T.
template <class T>
std::vector<LossTotals> loss_totals(const HeadGroup<T>& group, const PreparedValues<T>& values,
                                    const RowGradients<T>& gradients, RowRange rows, Workers& workers,
                                    Index most_logits = kMostLogits);

/// Reference of the loss, [l]: recomputes the attention without each of the candidates, O(|rows| l (l + S)
/// d_v).
Vector<double> loss_totals_reference(const HeadGroup<double>& group, Index g,
                                     const RowGradients<double>& gradients, RowRange rows);

/// A power of two that brings the largest of a head's gradients to 1/2 .. 1, so that their squares fit T.
template <class T>
double gradient_unit(const Matrix<T>& gradients);

}  // namespace kvreplay
