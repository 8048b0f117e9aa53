#include "sim/tokens/cuda/column_totals_cuda.hpp"
#include "sim/tokens/token_metrics_by.hpp"

#include <memory>

namespace kvreplay {

TokenMetrics cuda::token_metrics_of(const HeadGroup<float>& group, const StoredNumbers& numbers,
                                    const TokenOptions& options, Products products, Workers& workers) {
  const Stream stream;
  const PassesOf<float> passes = [&](const PreparedValues<float>&) {
    const auto on_device = std::make_shared<const DeviceGroup>(group, numbers, products, stream);
    return [on_device](Rows rows, ColumnSet columns) { return on_device->column_totals(rows, columns); };
  };
  return token_metrics_by(passes, group, options, workers);
}

TokenMetrics token_metrics_cuda(const HeadGroup<float>& group, const TokenOptions& options, Workers& workers,
                                Products products) {
  return cuda::token_metrics_of(group, cuda::stored_numbers(group), options, products, workers);
}

}  // namespace kvreplay
