#pragma once

#include "sim/compute.hpp"
#include "sim/cuda/transfer.hpp"
#include "sim/tokens/column_totals.hpp"
#include "sim/tokens/cuda/column_kernels.hpp"
#include "sim/tokens/cuda/row_kernels.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace kvreplay::cuda {

/// Parts, `most` at most, that work of so many blocks is cut into, so that there are enough for a large
/// device. Depends on the sizes alone: so do the sums then, to the bit.
Index parts_of_work(Index blocks, Index most);

/// A head group's numbers in host memory, row by row without gaps, all of one type.
struct StoredNumbers {
  NumberType type = NumberType::f32;
  Index first_query = 0;       ///< the position of the first of the queries
  std::vector<const void*> q;  ///< G of [T - first_query][d]
  const void* k = nullptr;     ///< [T][d]
  const void* v = nullptr;     ///< [T][d_v]
};
/// The numbers of its matrices.
StoredNumbers stored_numbers(const HeadGroup<float>& group);
StoredNumbers stored_numbers(const StoredGroup& group);

/// A matrix on the calling thread's device as it lies in host memory.
class DeviceRows {
 public:
  /// rows [n][width], which have been read when this returns.
  DeviceRows(const void* rows, NumberType type, Index n, Index width, const Stream& stream);

  void* data() const { return data_.data(); }
  StoredRows stored() const { return {data(), type_}; }
  /// The first n rows.
  RowsOf first(Index n) const { return {stored(), narrow(n), width_}; }

 private:
  NumberType type_;
  int width_;
  Buffer<std::uint8_t> data_;
};

/// Values on a device, and what they are taken less.
class CentredValues {
 public:
  /// values [tokens][d_v]; refers to them until it is gone.
  CentredValues(const DeviceRows& values, Index tokens, Index d_v, const Stream& stream);

  StoredRows stored() const { return values_.stored(); }
  /// [d_v] on the device, near the mean of the values.
  const float* centre() const { return numbers_.data(); }

 private:
  friend class DeviceGroup;

  const DeviceRows& values_;
  Buffer<float> numbers_;  // the centre, and PreparedRows::largest
};

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
  /// keys and values: the group's; without values (null) for sets that need no outputs alone. Refers to all
  /// but `products` until it is gone.
  DeviceGroup(const HeadGroup<float>& group, const DeviceRows& keys, const CentredValues* values,
              Products products, const Stream& stream);

  bool has_values() const { return v_.centre != nullptr; }
  /// The values, where it has none: for what is asked next.
  void bring(const CentredValues& values);

 private:
  friend class ColumnRun;

  void take(const CentredValues& values);
  bool known_to_be_one_half() const { return products_ == Products::tensor || type_ == NumberType::f16; }

  const HeadGroup<float>& group_;
  const NumberType type_;  // of the keys
  const Products products_;
  const Stream& stream_;
  DeviceArrays arrays_;
  HalfBuffers k_halves_, v_halves_;
  HalfMatrix k_{};
  PreparedRows v_{};
  const float* sink_logit_ = nullptr;
};

/// Rows that attend to a group's tokens.
struct AttendingRows {
  Index count = 0;
  NumberType type = NumberType::f32;
  std::vector<const void*> q;                   ///< G of [count][d] in host memory
  Visibility seen;                              ///< each sees something
  std::function<std::string(Index)> name = {};  ///< of one, for messages
};
/// Rows at positions, in the group's own numbers.
AttendingRows rows_at(const HeadGroup<float>& group, const StoredNumbers& numbers, RowRange rows);

/// One set of rows of a group, and the memory that both passes over them take: O(G |rows| (d + d_v) + G l).
class ColumnRun {
 public:
  /// Brings the rows' queries to the device, whose group has values if the columns need outputs. Refers to
  /// the group until it is gone. There must be rows.
  ColumnRun(const DeviceGroup& group, AttendingRows rows, ColumnSet columns);

  /// Pass one is to leave FinishedRows::top_diff too.
  void ask_top_differences();
  /// Both passes, in the group's stream; returns at once.
  void launch() const;
  void launch_pass_one() const;  ///< with the rows' preparation
  void launch_pass_two() const;

  /// Waits for them: [G]. Throws InputError where a number overflows float32.
  std::vector<ColumnTotals> totals() const;

  /// Results of pass one that go to the host, when it is done: the rows' largest columns, [G][rows]. The
  /// other results stay on the device. Throws InputError where a number overflows float32.
  std::vector<LargestScores> largest() const;
  const ColumnProblem& problem() const { return problem_; }
  const FinishedRows& finished() const { return finished_; }
  StoredRows queries() const { return {queries_, rows_.type}; }
  const float* out_centred() const { return pass_.out_centred; }

 private:
  /// Numbers in one part of the sums, and before them in the results.
  Index sums_of_pass() const;
  Index row_results() const;
  void require_finite(const std::vector<LargestScores>& rows) const;

  const DeviceGroup& group_;
  const AttendingRows rows_;
  DeviceArrays arrays_;
  const std::uint8_t* queries_;  // [G][rows][d]
  HalfBuffers q_, out_halves_;
  Buffer<double> results_;  // of the rows, [G][rows] LargestScores, and then the sums
  ColumnProblem problem_{};
  SoftmaxStates states_{};
  FinishedRows finished_{};
  ScorePass pass_{};
};

}  // namespace kvreplay::cuda
