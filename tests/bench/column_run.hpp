#pragma once

#include "sim/tokens/column_totals_cuda.hpp"

#include <optional>
#include <string>

// What the GPU benchmark times: both passes over one set of rows of a head group on a device, and each pass
// alone.

namespace kvreplay::bench {

/// Elements of Q, K and V as the device keeps them.
enum class Input { f16, f32 };
/// How products are formed: as good as float32's own, or of float16 factors.
enum class Products { f32, tensor };

/// Why this build cannot run it, as one clause.
std::optional<std::string> why_not(Input input, Products products);

/// A head group on the calling thread's device. Refers to both until it is gone.
class DeviceGroup {
 public:
  DeviceGroup(const HeadGroup<float>& group, Products products, const cuda::Stream& stream);

 private:
  friend class ColumnRun;
  const HeadGroup<float>& group_;
  const cuda::Stream& stream_;
  cuda::Buffer<float> q_, k_, v_centred_, centre_, value_sq_, value_centred_sq_, centre_dot_value_;
  Vector<double> value_sq_host_;
};
DeviceGroup device_group(const HeadGroup<float>& group, Input input, Products products,
                         const cuda::Stream& stream);

/// A set of rows with the device memory it needs.
class ColumnRun {
 public:
  ColumnRun(const DeviceGroup& group, Rows rows, ColumnSet columns);
  ~ColumnRun();

  /// Both passes, asynchronously.
  void launch() const;
  void launch_pass_one() const;
  /// After pass one.
  void launch_pass_two() const;
  /// Waits and adds up: [G].
  std::vector<ColumnTotals> totals() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvreplay::bench
