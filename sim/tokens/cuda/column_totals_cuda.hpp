#pragma once

#include "sim/cuda/transfer.hpp"
#include "sim/tokens/column_totals.hpp"
#include "sim/tokens/cuda/column_kernels.hpp"

namespace kvreplay::cuda {

/// A head group's numbers in host memory, row by row without gaps, all of one type.
struct StoredNumbers {
  NumberType type = NumberType::f32;
  std::vector<const void*> q;  ///< G of [T_q][d]
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

/// A head group on the calling thread's device, ready for any set of rows.
class DeviceGroup {
 public:
  /// Refers to the group and the stream until it is gone, and takes its q, k and v from `numbers`.
  DeviceGroup(const HeadGroup<float>& group, const StoredNumbers& numbers, Products products,
              const Stream& stream);

  /// column_totals() on the device, where the sums of the weights come with all others. Device memory: O(G
  /// |rows| (d + d_v) + G l) beyond the group. Throws InputError where a number overflows float32,
  /// OutOfDeviceMemory and DeviceError.
  std::vector<ColumnTotals> column_totals(RowRange rows, ColumnSet columns) const;

 private:
  friend class ColumnRun;

  const HeadGroup<float>& group_;
  const Products products_;
  const Stream& stream_;
  const NumberType type_;
  DeviceArrays arrays_;
  std::uint8_t* q_;  // [G][T_q][d]
  bool queries_in_two_ = false;
  HalfBuffers k_, v_halves_;
  PreparedRows v_{};
  const float* sink_logit_;
  Vector<double> value_sq_host_;
};

/// One set of rows of a group, and the memory that both passes over them take.
class ColumnRun {
 public:
  /// Refers to the group until it is gone. Rows must not be empty.
  ColumnRun(const DeviceGroup& group, RowRange rows, ColumnSet columns);

  /// Both passes, in the group's stream; returns at once.
  void launch() const;
  void launch_pass_one() const;  ///< with the rows' preparation
  void launch_pass_two() const;

  /// Waits for them: [G].
  std::vector<ColumnTotals> totals() const;

 private:
  const DeviceGroup& group_;
  const RowRange rows_;
  const ColumnSet columns_;
  DeviceArrays arrays_;
  HalfBuffers q_, out_halves_;
  Buffer<double> sums_;
  ColumnProblem problem_{};
  SoftmaxStates states_{};
  FinishedRows finished_{};
  ScorePass pass_{};
};

/// token_metrics_cuda() with q, k and v from `numbers`, which are the group's.
TokenMetrics token_metrics_of(const HeadGroup<float>& group, const StoredNumbers& numbers,
                              const TokenOptions& options, Products products, Workers& workers);

}  // namespace kvreplay::cuda
