#pragma once

#include "sim/cuda/runtime.hpp"
#include "sim/tokens/column_totals.hpp"

namespace kvreplay::cuda {

/// A head group on the calling thread's device, ready for any set of rows.
class DeviceGroup {
 public:
  /// Refers to both until it is gone.
  DeviceGroup(const HeadGroup<float>& group, const PreparedValues<float>& values, const Stream& stream);

  /// column_totals() on the device. Device memory: O(G |rows| d_v + l) beyond the group. Throws InputError
  /// where a number overflows float32, OutOfDeviceMemory and DeviceError.
  std::vector<ColumnTotals> column_totals(Rows rows, ColumnSet columns) const;

 private:
  const HeadGroup<float>& group_;
  const Stream& stream_;
  Buffer<float> q_, k_, v_centred_, centre_, value_sq_, value_centred_sq_, centre_dot_value_, sink_logit_;
  Vector<double> value_sq_host_;
};

}  // namespace kvreplay::cuda
