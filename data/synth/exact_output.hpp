#pragma once

#include "data/dump.hpp"

#include <vector>

namespace kvreplay {

/// Causal attention in float64: row i of the result is sum_{p <= i} softmax_p(scale q_i . k_p) v_p. All
/// matrices are [T, d], row-major. O(T^2 d) time, O(T d) memory; every sum has a fixed order, so that the
/// bits are the same everywhere.
std::vector<double> exact_output(const std::vector<double>& q, const std::vector<double>& k,
                                 const std::vector<double>& v, Index T, Index d, double scale);

}  // namespace kvreplay
