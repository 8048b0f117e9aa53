#include "sim/backend_cuda.hpp"

#include "sim/channels/channel_interaction.hpp"
#include "sim/cuda/device_gate.hpp"
#include "sim/cuda/runtime.hpp"
#include "sim/eviction/decode/decode.hpp"
#include "sim/tokens/cuda/token_readings_cuda.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <vector>

namespace kvreplay {
namespace {

std::vector<cuda::DeviceInfo> most_capable_devices() {
  const cuda::Devices devices = cuda::find_devices();
  if (devices.found.empty()) throw cuda::DeviceError(devices.why_none);
  int best = 0;
  for (const cuda::DeviceInfo& device : devices.found) best = std::max(best, device.capability);
  std::vector<cuda::DeviceInfo> chosen;
  for (const cuda::DeviceInfo& device : devices.found)
    if (device.capability == best) chosen.push_back(device);
  return chosen;
}

std::vector<int> chosen_devices(std::optional<int> share) {
  std::vector<int> indices;
  for (const cuda::DeviceInfo& device : most_capable_devices()) indices.push_back(device.index);
  if (share) indices = {indices[static_cast<std::size_t>(*share) % indices.size()]};
  return indices;
}

/// Calls at once on a device: one computes while another's numbers are read, prepared and copied.
constexpr int kAtOnce = 4;

class CudaBackend final : public Backend {
 public:
  CudaBackend(bool falls_back, Products products, std::optional<int> share)
      : Backend(twins(products)),
        falls_back_(falls_back),
        devices_(chosen_devices(share)),
        gate_(devices_.size(), kAtOnce) {}

  std::string_view name() const override { return "cuda"; }
  bool reads_stored() const override { return true; }
  Index fell_back() const override { return fell_back_; }

 private:
  static Twins twins(Products products) {
    Twins twins;
    twins.read_metrics = [products](const HeadGroup<float>& group, const TokenOptions& options,
                                    Workers& workers, const StoredGroup* stored) {
      const cuda::StoredNumbers numbers =
          stored != nullptr ? cuda::stored_numbers(*stored) : cuda::stored_numbers(group);
      return cuda::read_metrics_of(group, numbers, options, products, workers);
    };
    twins.output_changes = [](const HeadGroup<float>& group, RowRange rows, std::span<const KeptSet> sets,
                              bool with_vectors, Workers& workers) {
      return output_changes_cuda(group, rows, sets, with_vectors, workers);
    };
    twins.gram_f64 = gram_f64_cuda;
    twins.query_gram = query_gram_cuda;
    twins.output_interaction = output_interaction_cuda;
    twins.greedy_exact = greedy_exact_cuda;
    twins.exchange = exchange_cuda;
    twins.decode_replays = [](const HeadGroup<float>& group, std::span<const DecodeRequest> runs,
                              const std::vector<Matrix<float>>& full,
                              Workers& workers) { return decode_replays_cuda(group, runs, full, workers); };
    return twins;
  }

  bool on_device(const std::function<void()>& work) const override {
    try {
      cuda::in_turn(gate_, [&](std::size_t place) {
        cuda::use_device(devices_[place]);
        work();
      });
      return true;
    } catch (const cuda::OutOfDeviceMemory&) {
      if (!falls_back_) throw;
      ++fell_back_;
    }
    return false;
  }

  bool falls_back_;
  std::vector<int> devices_;
  mutable cuda::DeviceGate gate_;
  mutable std::atomic<Index> fell_back_{0};
};

}  // namespace

std::string why_no_cuda() { return cuda::find_devices().why_none; }

int cuda_capability() { return most_capable_devices().front().capability; }

std::shared_ptr<const Backend> cuda_backend(bool falls_back, Products products, std::optional<int> share) {
  return std::make_shared<const CudaBackend>(falls_back, products, share);
}

}  // namespace kvreplay
