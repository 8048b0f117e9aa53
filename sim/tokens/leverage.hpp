#pragma once

#include "sim/head_group.hpp"
#include "sim/kept_set.hpp"
#include "sim/least_squares/row_logits.hpp"
#include "sim/schedule.hpp"

#include <optional>
#include <string>

// Leverage of a token: the cost of its eviction if the values of the other tokens may change to stand in for
// it. Optimal Brain Surgeon (Hassibi, Stork 1993) for values. X [n, l] are the weights of reference rows of
// Reference::shifted over the whole prompt, V [l, d_v] the values, G = X^T X + mu I. Among all C whose rows
// of evicted tokens are 0, the least
//
//   E(C) = |X (C - V)|^2 + mu |C - V|^2
//
// is |v_p|^2 / [G^-1]_pp for a single token p. Weights are not renormalised: the exact replay of the kept
// tokens is the judge. In float64, the same bytes for any number of threads.

namespace kvreplay {

/// Longest prompt: G and its inverse are l^2 numbers each.
inline constexpr Index kMostLeverageTokens = 4096;
/// mu over the mean of X^T X's diagonal.
inline constexpr double kLeverageRidge = 1e-3;

/// The rows of X: at most 4096 of all query heads together; of more, as many evenly spaced.
QueryRows<double> leverage_rows(const HeadGroup<double>& group);

/// Why a dump's tokens have no leverage, as one clause; nothing where they have.
std::optional<std::string> why_no_leverage(const Dump& dump);

/// min E for each token alone, [l], in squared output. n l^2 + l^3 flops.
Vector<double> leverage(const HeadGroup<double>& group, Workers& workers);

/// Evicts one candidate at a time until `keep` are left: each time the one of least cost, with all others
/// refitted. GreedyPath::error is min E after each eviction. Ties, to rounding, evict the higher position.
/// n l^2 + 2 l^3 flops, and per step O((l + d_v) l) in rank-one updates of G^-1, carried out in blocks.
GreedyPath greedy_leverage(const HeadGroup<double>& group, Index keep, Workers& workers);

/// Reference: solves a system over the other tokens for each token's min E. O(l^4).
Vector<double> leverage_reference(const HeadGroup<double>& group);

}  // namespace kvreplay
