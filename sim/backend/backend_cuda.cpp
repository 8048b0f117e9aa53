#include "sim/backend/backend_cuda.hpp"

#include "sim/cache/cache_outputs.hpp"
#include "sim/channels/channel_interaction.hpp"
#include "sim/channels/output_interaction.hpp"
#include "sim/cuda/device_gate.hpp"
#include "sim/cuda/runtime.hpp"
#include "sim/eviction/decode/decode.hpp"
#include "sim/eviction/exact/greedy.hpp"
#include "sim/tokens/cuda/token_readings_cuda.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>
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
  using Backend::output_interaction, Backend::decode_replays;
  using Backend::token_metrics, Backend::output_changes, Backend::gram_f64, Backend::query_gram;

  CudaBackend(bool falls_back, Products products, std::optional<int> share)
      : falls_back_(falls_back),
        products_(products),
        devices_(chosen_devices(share)),
        gate_(devices_.size(), kAtOnce) {}

  std::string_view name() const override { return "cuda"; }
  bool reads_stored() const override { return true; }
  Index fell_back() const override { return fell_back_; }

  TokenMetrics token_metrics(const HeadGroup<float>& group, const TokenOptions& options, Workers& workers,
                             const StoredGroup* stored) const override {
    std::optional<ReadMetrics> read = on_device([&] {
      const cuda::StoredNumbers numbers =
          stored != nullptr ? cuda::stored_numbers(*stored) : cuda::stored_numbers(group);
      return cuda::read_metrics_of(group, numbers, options, products_, workers);
    });
    if (!read) return Backend::token_metrics(group, options, workers, stored);
    return finished_metrics(std::move(*read), group, options, workers);
  }
  OutputChanges<float> output_changes(const HeadGroup<float>& group, RowRange rows,
                                      std::span<const Cache<float>> caches, bool with_vectors,
                                      Workers& workers) const override {
    const auto on_host = [&] { return Backend::output_changes(group, rows, caches, with_vectors, workers); };
    if (!std::all_of(caches.begin(), caches.end(), [](const auto& cache) { return cache.only_evicts(); }))
      return on_host();
    return on_device([&] { return output_changes_cuda(group, rows, caches, with_vectors, workers); },
                     on_host);
  }
  Matrix<double> gram_f64(const HeadMatrix<float>& x, const std::vector<Index>& rows,
                          Workers& workers) const override {
    return on_device([&] { return gram_f64_cuda(x, rows); },
                     [&] { return Backend::gram_f64(x, rows, workers); });
  }
  Matrix<double> query_gram(const HeadGroup<float>& group, RowRange rows, Workers& workers) const override {
    return on_device([&] { return query_gram_cuda(group, rows); },
                     [&] { return Backend::query_gram(group, rows, workers); });
  }
  Matrix<double> output_interaction(const HeadGroup<float>& group, RowRange rows, const PrunableKeys& keys,
                                    Workers& workers) const override {
    return on_device([&] { return output_interaction_cuda(group, rows, keys, workers); },
                     [&] { return Backend::output_interaction(group, rows, keys, workers); });
  }
  GreedyPath greedy_exact(const HeadGroup<double>& group, RowRange rows, Index keep,
                          Workers& workers) const override {
    return on_device([&] { return greedy_exact_cuda(group, rows, keep, workers); },
                     [&] { return Backend::greedy_exact(group, rows, keep, workers); });
  }
  KeptSet exchange(const HeadGroup<double>& group, RowRange rows, KeptSet start,
                   Workers& workers) const override {
    return on_device([&] { return exchange_cuda(group, rows, start, workers); },
                     [&] { return Backend::exchange(group, rows, start, workers); });
  }
  std::vector<DecodeReplay<float>> decode_replays(const HeadGroup<float>& group,
                                                  std::span<const DecodeRequest> runs,
                                                  const std::vector<Matrix<float>>& full,
                                                  Workers& workers) const override {
    return on_device([&] { return decode_replays_cuda(group, runs, full, workers); },
                     [&] { return Backend::decode_replays(group, runs, full, workers); });
  }

 private:
  /// What `work` gives with a device at hand; nothing where the CPU is to take over.
  template <class Work>
  std::optional<std::invoke_result_t<Work>> on_device(const Work& work) const {
    std::optional<std::invoke_result_t<Work>> found;
    try {
      cuda::in_turn(gate_, [&](std::size_t place) {
        cuda::use_device(devices_[place]);
        found = work();
      });
    } catch (const cuda::OutOfDeviceMemory&) {
      if (!falls_back_) throw;
      ++fell_back_;
    }
    return found;
  }
  template <class Work, class OnCpu>
  std::invoke_result_t<Work> on_device(const Work& work, const OnCpu& on_cpu) const {
    if (auto found = on_device(work)) return std::move(*found);
    return on_cpu();
  }

  bool falls_back_;
  Products products_;
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
