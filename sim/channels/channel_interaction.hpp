#pragma once

#include "sim/eviction/kept_set.hpp"
#include "sim/head_group.hpp"
#include "sim/schedule.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <vector>

// How key channels interact in the logits: H = (K^T K) o (sum over the group's heads of Q_h^T Q_h), [d, d], o
// the entrywise product ([IAP] eq. 3). The squared change of the logits Q K^T when the channels S are dropped
// is the sum of H over S x S.

namespace kvreplay {

/// X^T X over the rows `rows` of x [n, d]: [d, d], exactly symmetric. Tiles in T, sums over tiles in float64;
/// the same bytes for any number of threads. Cost: |rows| d (d + 1) flops; memory O(d^2) an item, of which
/// there are at most 32. Throws InputError where a square overflows T.
template <class T>
Matrix<double> gram(const Matrix<T>& x, const std::vector<Index>& rows, Workers& workers);

/// The same with products and sums in float64, for twice the flops' time: a product of two float32 numbers is
/// exact. Where interactions of a chosen set cancel, sums over its part of H need these digits.
template <class T>
Matrix<double> gram_f64(const Matrix<T>& x, const std::vector<Index>& rows, Workers& workers);

/// sum over the group's heads of Q_h^T Q_h over the queries at the positions `rows`: [d, d].
template <class T>
Matrix<double> query_gram(const HeadGroup<T>& group, Rows rows, Workers& workers);

/// The CUDA twins, on the calling thread's device (sim/cuda/runtime.hpp): [d, d], exactly symmetric, the same
/// bits in every run. gram_cuda() in tiles of float32 with sums over tiles in float64, as gram(); the others
/// in float64. Device memory: the rows from the first to the last of `rows`, and about 16 MiB + 12 d^2 bytes.
/// Throw DeviceError and OutOfDeviceMemory besides what their CPU twins throw.
Matrix<double> gram_cuda(const Matrix<float>& x, const std::vector<Index>& rows);
Matrix<double> gram_f64_cuda(const Matrix<float>& x, const std::vector<Index>& rows);
Matrix<double> query_gram_cuda(const HeadGroup<float>& group, Rows rows);

/// The judge of H: sum over rows and heads, keys of `keys`, of (q_ic k_pc)(q_id k_pd), in float64.
Matrix<double> channel_interaction_reference(const HeadGroup<double>& group, const std::vector<Index>& keys,
                                             Rows rows);

/// The judge of the reconstruction error: ||Q K^T - Q S K^T||_F^2 over rows and heads, from both products,
/// where S drops the channels of `dropped` [d].
double reconstruction_error_reference(const HeadGroup<double>& group, const std::vector<Index>& keys,
                                      Rows rows, const std::vector<std::uint8_t>& dropped);

/// The share of the sum of |H| that lies off the diagonal; 0 where H is 0.
double off_diagonal_share(const Matrix<double>& H);
/// Eigenvalues of a symmetric matrix, largest first: [d].
Vector<double> spectrum(const Matrix<double>& H);

}  // namespace kvreplay
