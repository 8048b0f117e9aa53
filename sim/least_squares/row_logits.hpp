#pragma once

#include "sim/head_group.hpp"
#include "sim/row_range.hpp"
#include "sim/schedule.hpp"

#include <span>
#include <vector>

namespace kvreplay {

/// Queries of a head group's query heads, its own or others.
template <class T>
struct QueryRows {
  Matrix<T> q;                    ///< [n, d], after RoPE
  std::vector<Index> head;        ///< [n], the query head in the group
  std::vector<RowRange> visible;  ///< [n], the positions of keys that the query sees
  Index count() const { return q.rows(); }
};

/// The group's own queries at positions `rows`, one query head behind the other.
template <class T>
QueryRows<T> own_rows(const HeadGroup<T>& group, RowRange rows);

/// Attention of n rows over all that they see: a_ip over prompt tokens as logarithms, which neither vanish
/// nor cancel whichever tokens are then left out, and what decoded tokens and the sink column have of it.
template <class T>
struct RowLogits {
  Index n = 0, l = 0;
  std::vector<T> log_weight;   ///< [panels][l][W], W = kPanelWidth<T>: log a_ip, -inf where hidden
  Matrix<double> prompt_out;   ///< [n, d_v], sum over prompt tokens of a_ip v_p
  Matrix<double> rest_out;     ///< [n, d_v], the same over decoded tokens
  Vector<double> prompt_mass;  ///< [n], sum over prompt tokens of a_ip
  Vector<double> log_rest;     ///< [n], logarithm of the weight of decoded tokens and sink; -inf for none

  double full_sq() const {
    return (prompt_out + rest_out).squaredNorm();
  }  ///< sum over the rows of ||o_i||^2
};

/// Products in T, sums over tokens in T by panels and in float64 over weights. Throws InputError where a
/// number overflows T. Cost: 2 n T (d + d_v) flops and n T exponentials; holds n l numbers of T.
template <class T>
RowLogits<T> row_logits(const HeadGroup<T>& group, const QueryRows<T>& rows, Workers& workers);

/// The weights that kept tokens have in some rows of a RowLogits when each counts `weight` times (empty:
/// once): of row r they are e(r, j) = scale[r] a w, with scale such that the largest, `rest` included, is 1.
struct KeptWeights {
  Matrix<double> e;        ///< [rows, m]
  Vector<double> rest;     ///< [rows], of decoded tokens and sink, scaled alike
  Vector<double> unscale;  ///< [rows], 1 / scale; 0 where a row sees nothing
  /// The weight of all that is left, [rows]; 0 where a row sees nothing.
  Vector<double> total() const { return e.rowwise().sum() + rest; }
};
/// Rows `first` to `first + count` - 1, `first` a multiple of the panels' width; `tokens` [m] ascending.
template <class T>
KeptWeights kept_weights(const RowLogits<T>& rows, Index first, Index count, std::span<const Index> tokens,
                         const Vector<double>& weight);

}  // namespace kvreplay
