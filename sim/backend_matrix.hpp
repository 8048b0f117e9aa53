#pragma once

#include "sim/backend.hpp"
#include "sim/simd/matrix_unit.hpp"

#include <functional>

namespace kvreplay {

/// The CPU with a matrix unit (sim/simd/matrix_unit.hpp) for the products of float32's token metrics, rounded
/// to bfloat16.
class MatrixBackend final : public Backend {
 public:
  explicit MatrixBackend(const MatrixUnit& unit) : Backend(twins(unit)) {}

 private:
  static Twins twins(const MatrixUnit& unit) {
    Twins twins;
    twins.read_metrics = [&unit](const HeadGroup<float>& group, const TokenOptions& options, Workers& workers,
                                 const StoredGroup*) {
      return read_metrics_cpu(group, options, workers, &unit);
    };
    return twins;
  }
  bool on_device(const std::function<void()>& work) const override { return work(), true; }
};

}  // namespace kvreplay
