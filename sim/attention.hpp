#pragma once

#include "sim/head_group.hpp"

#include <vector>

// Brute-force float64 reference of attention, written to be read next to sim/tokens/METRICS.md. It judges the
// fast code and shares nothing with it.

namespace kvreplay {

/// Change of one token, after which the attention is computed again.
enum class TokenChange { zero_value, zero_key, zero_key_and_value, remove };

/// Logits of the query at position i of query head g (0..G-1) against all T positions: before (raw) and after
/// the soft cap (z), both -inf where the position is hidden.
struct LogitRow {
  Vector<double> raw;  ///< [T]
  Vector<double> z;    ///< [T]
};
LogitRow attention_logits(const HeadGroup<double>& group, Index g, Index i);
/// Logits with `keys` [T, d] in place of the group's.
LogitRow attention_logits(const HeadGroup<double>& group, Index g, Index i,
                          const Eigen::Ref<const Matrix<double>>& keys);

/// Softmax of a row of logits with head g's sink column, if it has one; all 0 where nothing is visible.
Vector<double> attention_weights(const HeadGroup<double>& group, Index g, const Vector<double>& z);

/// Weights of row r of the second reading on the prompt, [l]. The row is r positions behind the prompt's end;
/// its softmax is over the prompt and the sink column.
Vector<double> repeat_weights(const HeadGroup<double>& group, Index g, Index r);

/// o_i: the attention output, [d_v].
Vector<double> attention_output(const HeadGroup<double>& group, Index g, Index i);

/// A change, and the tokens to which it is applied, one at a time.
struct ChangedTokens {
  TokenChange change;
  std::vector<Index> tokens;
};

/// Squared L2 change of o_i if `change` is applied to token p, for each p of `tokens`: softmax and weighted
/// sum are recomputed from the changed keys and values for every token. 0 where p is hidden from i. Returns a
/// vector for each of `changes`, which share the row's logits.
std::vector<Vector<double>> brute_force_errors(const HeadGroup<double>& group, Index g, Index i,
                                               const std::vector<ChangedTokens>& changes);
Vector<double> brute_force_errors(const HeadGroup<double>& group, Index g, Index i, TokenChange change,
                                  const std::vector<Index>& tokens);

}  // namespace kvreplay
