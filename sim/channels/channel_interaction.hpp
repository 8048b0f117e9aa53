#pragma once

#include "sim/head_group.hpp"
#include "sim/kept_set.hpp"
#include "sim/row_range.hpp"
#include "sim/schedule.hpp"

#include <vector>

// Interaction of key channels in the logits: H = (K^T K) o (sum over the group's heads of Q_h^T Q_h), [d, d],
// o the entrywise product ([IAP] eq. 3). The squared change of the logits Q K^T when the channels S are
// dropped is the sum of H over S x S.

namespace kvreplay {

/// X^T X over the rows `rows` of x [n, d]: [d, d], exactly symmetric, the same bytes for any number of
/// threads. Products and sums in float64, in which a product of two float32 numbers is exact: where
/// interactions of a chosen set cancel, sums over its part of H need these digits. Cost: |rows| d (d + 1)
/// flops; memory O(d^2) an item, of which there are at most 32.
template <class T>
Matrix<double> gram_f64(const HeadMatrix<T>& x, const std::vector<Index>& rows, Workers& workers);
template <class T>
Matrix<double> gram_f64(const Matrix<T>& x, const std::vector<Index>& rows, Workers& workers) {
  return gram_f64(HeadMatrix<T>::of(x), rows, workers);
}

/// sum over the group's heads of Q_h^T Q_h over the queries at the positions `rows`: [d, d].
template <class T>
Matrix<double> query_gram(const HeadGroup<T>& group, RowRange rows, Workers& workers);

/// The diagonals of gram_f64() and query_gram() alone, [d], whose entrywise product is that of H: in float64
/// too, each row read once, the same bytes for any number of threads.
template <class T>
Vector<double> gram_diagonal(const HeadMatrix<T>& x, const std::vector<Index>& rows, Workers& workers);
template <class T>
Vector<double> query_gram_diagonal(const HeadGroup<T>& group, RowRange rows, Workers& workers);

/// Reference of H: sum over rows and heads, keys of `keys`, of (q_ic k_pc)(q_id k_pd), in float64.
Matrix<double> channel_interaction_reference(const HeadGroup<double>& group, const std::vector<Index>& keys,
                                             RowRange rows);

/// Reference of the reconstruction error: ||Q K^T - Q S K^T||_F^2 over rows and heads, from both products,
/// where S drops the channels of `dropped` [d].
double reconstruction_error_reference(const HeadGroup<double>& group, const std::vector<Index>& keys,
                                      RowRange rows, const std::vector<std::uint8_t>& dropped);

/// The share of the sum of |H| that lies off the diagonal; 0 where H is 0.
double off_diagonal_share(const Matrix<double>& H);
/// Eigenvalues of a symmetric matrix, largest first: [d].
Vector<double> spectrum(const Matrix<double>& H);

/// Mean and standard deviation (divided by n) of every channel of one query head over a set of rows: what
/// differs between the window and the decoding steps is the drift that makes a selection age ([IAP] fig. 2).
struct ChannelMoments {
  Vector<double> mean, deviation;  ///< [d]
};

/// `rows` are positions with a query, not empty.
template <class T>
ChannelMoments query_moments(const HeadGroup<T>& group, Index g, RowRange rows) {
  const Matrix<double> q =
      group.q[g].middleRows(rows.begin - group.first_query(), rows.count()).template cast<double>();
  ChannelMoments moments;
  moments.mean = q.colwise().mean().transpose();
  moments.deviation =
      (q.rowwise() - moments.mean.transpose()).array().square().colwise().mean().sqrt().transpose();
  return moments;
}

}  // namespace kvreplay
