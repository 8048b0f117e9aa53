#pragma once

#include "sim/head_group.hpp"
#include "sim/kept_set.hpp"
#include "sim/row_range.hpp"
#include "sim/schedule.hpp"

#include <vector>

// Searches for kept sets by their exact error, or by the loss that this error is predicted to cost
// (sim/loss/LOSS.md), in float64. For rows i of a row set, all G query heads of a group and a set M of
// candidates (HeadGroup::first_held()..l-1),
//
//   E(M) = sum over i and heads of ||o_i^M - o_i||^2,                        the error, or
//   E(M) = sum over i and heads of 1/2 mean_s (g_is . (o_i^M - o_i))^2,      the loss: loss_row times |rows|,
//
// where o_i^M is the attention of row i over M and every visible position that is no candidate (and the sink
// logit). A row that sees none of them has o := 0.

namespace kvreplay {

/// Evicts one prompt token at a time until `keep` are left, each time the one whose removal, given all before
/// it, leaves the smallest E. Ties, to rounding, evict the higher position. `rows` must have queries.
/// A step costs O((G |rows| + d) l); memory is G |rows| l times 32 bytes and a copy of keys and values. The
/// same path for any number of threads. Throws InputError where a number overflows.
GreedyPath greedy_exact(const HeadGroup<double>& group, RowRange rows, Index keep, Workers& workers);

/// The greedy path with the loss as E; `gradients` have all `rows`. A step costs O(G |rows| d_v l), whatever
/// S is: G |rows| products of d_v numbers with every token. Memory is 4 G |rows| l numbers and a copy of the
/// gradients.
GreedyPath greedy_loss(const HeadGroup<double>& group, const RowGradients<double>& gradients, RowRange rows,
                       Index keep, Workers& workers);

/// greedy_exact() on the calling thread's CUDA device, to rounding, in 8 (3 G |rows| l + 6 G |rows| d_v)
/// bytes of its memory and a copy of keys and values; cuda::OutOfDeviceMemory where it has less.
GreedyPath greedy_exact_cuda(const HeadGroup<double>& group, RowRange rows, Index keep, Workers& workers);

/// Reference: computes every candidate's attention anew from the definition, O(G |rows| l^2 (l - keep) d_v).
/// Shares no code with the fast version.
GreedyPath greedy_exact_reference(const HeadGroup<double>& group, RowRange rows, Index keep);
GreedyPath greedy_loss_reference(const HeadGroup<double>& group, const RowGradients<double>& gradients,
                                 RowRange rows, Index keep);

/// Swaps a kept with an evicted token while E falls by more than one part in 1e9, until no such swap does
/// (as far as float64 tells errors below 1e-16 of ||o||^2 apart). Evicted tokens come in by the error that
/// they would take away, each against the best one to drop for it; the first swap that pays is made.
/// A token that comes in costs O((G |rows| + d) B), a swap O((G |rows| + d) l); memory as greedy_exact.
/// Any number of threads gives this set.
KeptSet exchange(const HeadGroup<double>& group, RowRange rows, KeptSet start, Workers& workers);

/// The exchange with the loss as E. A token that comes in costs O(G |rows| d_v B).
KeptSet exchange_loss(const HeadGroup<double>& group, const RowGradients<double>& gradients, RowRange rows,
                      KeptSet start, Workers& workers);

/// exchange() on the calling thread's CUDA device; memory as greedy_exact_cuda.
KeptSet exchange_cuda(const HeadGroup<double>& group, RowRange rows, KeptSet start, Workers& workers);

}  // namespace kvreplay
