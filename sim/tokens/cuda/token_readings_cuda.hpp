#pragma once

#include "sim/tokens/cuda/column_totals_cuda.hpp"
#include "sim/tokens/expected_attention.hpp"
#include "sim/tokens/token_readings.hpp"

#include <optional>
#include <span>
#include <vector>

namespace kvreplay::cuda {

/// Quantities of a head group computed on the calling thread's device. Keys and values are copied there once,
/// each at its first use. Throws InputError where a number overflows float32, OutOfDeviceMemory and
/// DeviceError.
class DeviceReadings final : public TokenReadings<float> {
 public:
  /// With q, k and v from `numbers`, which are the group's. Refers to all until it is gone.
  DeviceReadings(const HeadGroup<float>& group, const StoredNumbers& numbers, Products products,
                 Workers& workers)
      : TokenReadings(group, workers), numbers_(numbers), products_(products) {}

  std::vector<std::vector<ColumnTotals>> column_totals(std::span<const ColumnRequest> requests) override;
  Vector<double> value_squares() override;
  std::vector<CaoteScores> caote(const std::vector<ColumnTotals>& totals) override;
  Vector<double> key_norms() override;
  Vector<double> keydiff() override;
  Matrix<double> expected_attention() override;
  Vector<double> projected_value_norms(Index g) override;
  Matrix<double> repeat_attention() override;
  std::vector<LossTotals> loss_totals(const RowGradients<float>& gradients, RowRange rows) override;

 private:
  const DeviceRows& keys();
  const DeviceRows& values();
  const CentredValues& centred();
  const DeviceGroup& attended(bool outputs);
  const Vector<double>& value_norms();
  QueryMoments query_moments();

  const StoredNumbers& numbers_;
  const Products products_;
  const Stream stream_;
  std::optional<DeviceRows> keys_, values_;
  std::optional<CentredValues> centred_;
  std::optional<DeviceGroup> attended_;
  std::optional<Vector<double>> value_norms_;
};

/// read_metrics() on the calling thread's device, and all metrics.
ReadMetrics read_metrics_of(const HeadGroup<float>& group, const StoredNumbers& numbers,
                            const TokenOptions& options, Products products, Workers& workers);
TokenMetrics token_metrics_of(const HeadGroup<float>& group, const StoredNumbers& numbers,
                              const TokenOptions& options, Products products, Workers& workers);

}  // namespace kvreplay::cuda
