#pragma once

#include <span>

namespace kvreplay::viewer {

/// Replaces each value by its place among those that are there: 0 the smallest, 1 the largest, equal ones the
/// mean of their places; 0 where it is the only one. NaN stays. O(n log n).
void rank_shares(std::span<float> values);
void rank_shares(std::span<double> values);

}  // namespace kvreplay::viewer
