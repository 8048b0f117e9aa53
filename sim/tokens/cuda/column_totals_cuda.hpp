#pragma once

#include "sim/cuda/transfer.hpp"
#include "sim/tokens/column_totals.hpp"
#include "sim/tokens/cuda/column_kernels.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvreplay::cuda {

/// A head group's numbers in host memory, row by row without gaps, all of one type.
struct StoredNumbers {
  NumberType type = NumberType::f32;
  Index first_query = 0;       ///< the position of the first of the queries
  std::vector<const void*> q;  ///< G of [T - first_query][d]
  const void* k = nullptr;     ///< [T][d]
  const void* v = nullptr;     ///< [T][d_v]
};
/// Those of its matrices.
StoredNumbers stored_numbers(const HeadGroup<float>& group);
StoredNumbers stored_numbers(const StoredGroup& group);

/// A HalfMatrix's memory.
class HalfBuffers {
 public:
  HalfBuffers() = default;
  HalfBuffers(Index rows, Index channels, bool with_low, Index units);
  HalfMatrix view() const;
  /// From now on each number is one half.
  void drop_low() { low_ = {}; }

 private:
  int depth_ = 0;
  Buffer<std::uint16_t> high_, low_;
  Buffer<float> unit_;
};

/// A head group's keys and values on the calling thread's device, ready for any set of rows.
class DeviceGroup {
 public:
  /// Refers to the group, to what `numbers` names and to the stream until it is gone.
  DeviceGroup(const HeadGroup<float>& group, StoredNumbers numbers, Products products, const Stream& stream);

 private:
  friend class ColumnRun;

  bool known_to_be_one_half() const {
    return products_ == Products::tensor || numbers_.type == NumberType::f16;
  }

  const HeadGroup<float>& group_;
  const StoredNumbers numbers_;
  const Products products_;
  const Stream& stream_;
  DeviceArrays arrays_;
  HalfBuffers k_halves_, v_halves_;
  HalfMatrix k_{};
  PreparedRows v_{};
  const float* sink_logit_ = nullptr;
};

/// One set of rows of a group, and the memory that both passes over them take: O(G |rows| (d + d_v) + G l).
class ColumnRun {
 public:
  /// Brings the rows' queries to the device. Refers to the group until it is gone. Rows must not be empty.
  ColumnRun(const DeviceGroup& group, RowRange rows, ColumnSet columns);

  /// Both passes, in the group's stream; returns at once.
  void launch() const;
  void launch_pass_one() const;  ///< with the rows' preparation
  void launch_pass_two() const;

  /// Waits for them: [G]. The sums of the weights come with all others. Throws InputError where a number
  /// overflows float32.
  std::vector<ColumnTotals> totals() const;

 private:
  /// Numbers in one part of the sums, and before them in the results.
  Index sums_of_pass() const;
  Index row_results() const;

  const DeviceGroup& group_;
  const RowRange rows_;
  const ColumnSet columns_;
  DeviceArrays arrays_;
  const std::uint8_t* queries_;  // [G][rows][d]
  HalfBuffers q_, out_halves_;
  Buffer<double> results_;  // of the rows, [G][rows] LargestScores, and then the sums
  ColumnProblem problem_{};
  SoftmaxStates states_{};
  FinishedRows finished_{};
  ScorePass pass_{};
};

/// column_totals() of each request on the device, with q, k and v from `numbers`, which are the group's.
/// Throws InputError where a number overflows float32, OutOfDeviceMemory and DeviceError.
std::vector<std::vector<ColumnTotals>> column_totals_of(const HeadGroup<float>& group,
                                                        const StoredNumbers& numbers, Products products,
                                                        std::span<const ColumnRequest> requests);
/// token_metrics_cuda() with those.
TokenMetrics token_metrics_of(const HeadGroup<float>& group, const StoredNumbers& numbers,
                              const TokenOptions& options, Products products, Workers& workers);

}  // namespace kvreplay::cuda
