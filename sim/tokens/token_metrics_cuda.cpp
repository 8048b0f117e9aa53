#include "sim/tokens/column_totals_cuda.hpp"
#include "sim/tokens/token_metrics_by.hpp"

#include <memory>

namespace kvreplay {

TokenMetrics token_metrics_cuda(const HeadGroup<float>& group, const TokenOptions& options,
                                Workers& workers) {
  const cuda::Stream stream;
  const PassesOf<float> passes = [&](const PreparedValues<float>&) {
    const auto on_device = std::make_shared<const cuda::DeviceGroup>(group, cuda::stored_numbers(group),
                                                                     cuda::Products::f32, stream);
    return [on_device](Rows rows, ColumnSet columns) { return on_device->column_totals(rows, columns); };
  };
  return token_metrics_by(passes, group, options, workers);
}

}  // namespace kvreplay
