#pragma once

#include "sim/eviction/exact/cuda/exact_error_block.hpp"

namespace kvreplay::cuda {

inline constexpr int kMostRowWarps = 4;
inline constexpr int kDecodedAtOnce = 128;

/// The four sums that an output is judged by.
struct OutputSums {
  double current_sq, change_current, change_sq, top_error;

  KVREPLAY_DEVICE OutputSums operator+(const OutputSums& other) const {
    return {current_sq + other.current_sq, change_current + other.change_current, change_sq + other.change_sq,
            top_error + other.top_error};
  }
};
KVREPLAY_DEVICE OutputSums shuffle_xor(const OutputSums& sums, int mask) {
  return {cuda::shuffle_xor(sums.current_sq, mask), cuda::shuffle_xor(sums.change_current, mask),
          cuda::shuffle_xor(sums.change_sq, mask), cuda::shuffle_xor(sums.top_error, mask)};
}
/// The larger weight; of equals the lower column.
struct LargerColumn {
  KVREPLAY_DEVICE ErrorColumn operator()(const ErrorColumn& a, const ErrorColumn& b) const {
    return b.weight > a.weight || (b.weight == a.weight && b.column < a.column) ? b : a;
  }
};

struct RowShared {
  double sums[kMostRowWarps];
  OutputSums output[kMostRowWarps];
  ErrorColumn column[kMostRowWarps];
  double weights[kDecodedAtOnce];
};
KVREPLAY_DEVICE RowShared& row_shared() { return *reinterpret_cast<RowShared*>(shared_memory()); }

/// Where a row's numbers lie, for exact_error_row.hpp; a block has the row. Channels and entries that a
/// thread writes are its own until the next barrier.
struct ErrorPlace {
  const ErrorTable& t;
  int row, kept, warps;

  KVREPLAY_DEVICE Index column_of(Index p) const { return t.column[p]; }
  KVREPLAY_DEVICE Index position_of(Index column) const { return t.position[column]; }
  KVREPLAY_DEVICE const double* value(Index column) const {
    return row_of(t.values, static_cast<int>(column), t.width);
  }
  KVREPLAY_DEVICE const double* key(int column) const { return row_of(t.keys, column, t.key_width); }
  KVREPLAY_DEVICE double* vector(double* matrix) const { return row_of(matrix, row, t.width); }
  KVREPLAY_DEVICE double& at(int column, ErrorEntry which) const { return entry(t, row, column, which); }
  KVREPLAY_DEVICE const double* top_value(const ErrorRowState& state) const {
    return state.top < 0 ? t.zeros : value(t.column[state.top]);
  }

  KVREPLAY_DEVICE int threads() const { return 32 * warps; }
  template <class Join>
  KVREPLAY_DEVICE double over_threads(double value, Join join) const {
    return over_block(value, warps, row_shared().sums, join);
  }

  /// A warp calls.
  KVREPLAY_DEVICE double logit_of(Index column) const {
    const double* query = row_of(t.queries, row, t.key_width);
    return exact_error::logit(warp_dot(query, key(static_cast<int>(column)), t.key_width), t.scale,
                              t.softcap);
  }
  KVREPLAY_DEVICE void set_weight(Index column, double w) const {
    if (thread_id() == 0) at(static_cast<int>(column), kWeight) = w;
  }
  KVREPLAY_DEVICE void add_to_rest(double w, Index column) const {
    for (int k = thread_id(); k < t.width; k += threads()) vector(t.rest)[k] += w * value(column)[k];
  }
  KVREPLAY_DEVICE ErrorColumn largest_kept() const {
    sync_block();
    ErrorColumn largest{0, 0};
    for (int c = thread_id(); c < kept; c += threads()) {
      const double weight = at(c, kWeight);
      if (weight > largest.weight) largest = {weight, c};
    }
    return over_block(largest, warps, row_shared().column, LargerColumn{});
  }

  /// The candidates' logits to kWeight, to be read after a barrier.
  KVREPLAY_DEVICE void write_logits(const ErrorRowState& state) const {
    for (int c = warp_id(); c < t.l; c += warps) {
      const double z = exact_error::sees(state, t.position[c]) ? logit_of(c) : exact_error::kUnseen;
      if (lane_id() == 0) at(c, kWeight) = z;
    }
  }
  /// sum += kSum v over the columns [begin, end).
  KVREPLAY_DEVICE void add_columns(int begin, int end, double* sum) const {
    for (int k = thread_id(); k < t.width; k += threads()) {
      double channel = sum[k];
      for (int c = begin; c < end; ++c) channel += at(c, kSum) * value(c)[k];
      sum[k] = channel;
    }
  }
  /// Each candidate's entry becomes x . v. After a barrier.
  KVREPLAY_DEVICE void write_dots(const double* x, ErrorEntry which) const {
    for (int c = warp_id(); c < t.l; c += warps) {
      const double dot = warp_dot(value(c), x, t.width);
      if (lane_id() == 0) at(c, which) = dot;
    }
  }
};

}  // namespace kvreplay::cuda
