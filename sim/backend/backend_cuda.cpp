#include "sim/backend/backend_cuda.hpp"

#include "sim/cache/cache_outputs.hpp"
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
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvreplay {
namespace {

ComputeDevice asked(const cuda::DeviceInfo& device) {
  ComputeDevice of{
      .number = device.index, .name = device.name, .capability = device.capability, .memory = device.memory};
  try {
    const cuda::Versions versions = cuda::versions();
    of.driver = versions.driver;
    of.runtime = versions.runtime;
    cuda::use_device(device.index);
    const cuda::DeviceCode code = cuda::device_code();
    of.code = code.architecture;
    of.from_ptx = code.from_ptx;
  } catch (const cuda::DeviceError& error) {
    of.why_not = error.what();
  }
  return of;
}

struct Chosen {
  std::vector<ComputeDevice> devices;  ///< of one capability
  std::string why_none;
};

/// Only those that may be taken are asked: that takes memory on them, which may be others'.
Chosen chosen_devices(const CudaChoice& choice) {
  const cuda::Devices all = cuda::find_devices();
  std::map<int, std::vector<cuda::DeviceInfo>, std::greater<>> by_capability;
  for (const cuda::DeviceInfo& device : all.found)
    if (!choice.number || device.index == *choice.number) by_capability[device.capability].push_back(device);
  Chosen chosen;
  for (auto& [capability, devices] : by_capability) {
    if (choice.share) devices = {devices[static_cast<std::size_t>(*choice.share) % devices.size()]};
    for (const cuda::DeviceInfo& device : devices) {
      ComputeDevice of = asked(device);
      if (of.why_not.empty())
        chosen.devices.push_back(std::move(of));
      else if (chosen.why_none.empty())
        chosen.why_none = of.why_not;
    }
    if (!chosen.devices.empty()) return {std::move(chosen.devices), ""};
  }
  if (chosen.why_none.empty()) chosen.why_none = all.why_none;
  if (chosen.why_none.empty())
    chosen.why_none = "GPU " + std::to_string(*choice.number) + " is none of those that there are";
  return chosen;
}

std::vector<ComputeDevice> devices_or_error(const CudaChoice& choice) {
  Chosen chosen = chosen_devices(choice);
  if (chosen.devices.empty()) throw cuda::DeviceError(chosen.why_none);
  return std::move(chosen.devices);
}

class CudaBackend final : public Backend {
 public:
  using Backend::output_interaction, Backend::decode_replays;
  using Backend::token_metrics, Backend::output_changes;

  CudaBackend(bool falls_back, Products products, const CudaChoice& choice)
      : falls_back_(falls_back),
        products_(products),
        devices_(devices_or_error(choice)),
        gate_(devices_.size(), cuda::kCallsAtOnce) {}

  std::string_view name() const override { return "cuda"; }
  bool reads_stored() const override { return true; }
  std::vector<ComputeDevice> devices() const override { return devices_; }
  Index fell_back() const override { return fell_back_; }
  std::string failure() const override {
    const std::lock_guard lock(failure_mutex_);
    return failure_;
  }

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
    if (std::ranges::all_of(caches, fits_devices))
      return on_device([&] { return output_changes_cuda(group, rows, caches, with_vectors, workers); },
                       on_host);
    std::vector<Cache<float>> mine;
    std::ranges::copy_if(caches, std::back_inserter(mine), fits_devices);
    if (mine.empty()) return on_host();
    return beside_others(group, rows, caches, output_changes(group, rows, mine, with_vectors, workers),
                         with_vectors, workers);
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
    if (!std::ranges::all_of(runs, fits_device)) return decoded_apart(group, runs, full, workers);
    return on_device([&] { return decode_replays_cuda(group, runs, full, workers); },
                     [&] { return Backend::decode_replays(group, runs, full, workers); });
  }

 private:
  static bool fits_device(const DecodeRequest& run) { return decodes_on_device(*run.rule, run.options); }
  /// Runs that do not fit a device are the CPU's.
  std::vector<DecodeReplay<float>> decoded_apart(const HeadGroup<float>& group,
                                                 std::span<const DecodeRequest> runs,
                                                 const std::vector<Matrix<float>>& full,
                                                 Workers& workers) const {
    std::vector<DecodeReplay<float>> replays(runs.size());
    for (const bool on_device : {true, false}) {
      std::vector<DecodeRequest> some;
      std::vector<std::size_t> numbers;
      for (std::size_t r = 0; r < runs.size(); ++r)
        if (fits_device(runs[r]) == on_device) {
          some.push_back(runs[r]);
          numbers.push_back(r);
        }
      if (some.empty()) continue;
      std::vector<DecodeReplay<float>> part = on_device ? decode_replays(group, some, full, workers)
                                                        : Backend::decode_replays(group, some, full, workers);
      for (std::size_t n = 0; n < numbers.size(); ++n) replays[numbers[n]] = std::move(part[n]);
    }
    return replays;
  }
  /// The changes that all of `caches` make, of which `mine` are those of the ones that fit devices: the
  /// others are the CPU's.
  OutputChanges<float> beside_others(const HeadGroup<float>& group, RowRange rows,
                                     std::span<const Cache<float>> caches, OutputChanges<float> mine,
                                     bool with_vectors, Workers& workers) const {
    std::vector<Cache<float>> others;
    std::ranges::copy_if(caches, std::back_inserter(others), std::not_fn(fits_devices));
    OutputChanges<float> on_cpu = Backend::output_changes(group, rows, others, with_vectors, workers);
    OutputChanges<float> all{mine.full_sq, {}, std::move(mine.full), {}};
    std::size_t next_mine = 0, next_other = 0;
    for (const Cache<float>& cache : caches) {
      OutputChanges<float>& from = fits_devices(cache) ? mine : on_cpu;
      const std::size_t at = fits_devices(cache) ? next_mine++ : next_other++;
      all.change_sq.push_back(from.change_sq[at]);
      if (with_vectors) all.change.push_back(std::move(from.change[at]));
    }
    return all;
  }
  /// The result of `work` with a device at hand; nothing where the CPU is to take over.
  template <class Work>
  std::optional<std::invoke_result_t<Work>> on_device(const Work& work) const {
    std::optional<std::invoke_result_t<Work>> found;
    if (failed_) return found;
    try {
      cuda::in_turn(gate_, [&](std::size_t place) {
        if (failed_) return;
        cuda::use_device(devices_[place].number);
        found = work();
      });
    } catch (const cuda::OutOfDeviceMemory&) {
      if (!falls_back_) throw;
      ++fell_back_;
    } catch (const cuda::DeviceError& error) {
      if (!falls_back_) throw;
      give_up(error.what());
    }
    return found;
  }
  /// A device that failed once is not asked again: most errors stay, and each is slow to come.
  void give_up(const char* why) const {
    const std::lock_guard lock(failure_mutex_);
    if (failure_.empty()) failure_ = why;
    failed_ = true;
  }
  template <class Work, class OnCpu>
  std::invoke_result_t<Work> on_device(const Work& work, const OnCpu& on_cpu) const {
    if (auto found = on_device(work)) return std::move(*found);
    return on_cpu();
  }

  bool falls_back_;
  Products products_;
  std::vector<ComputeDevice> devices_;
  mutable cuda::DeviceGate gate_;
  mutable std::atomic<Index> fell_back_{0};
  mutable std::atomic<bool> failed_{false};
  mutable std::mutex failure_mutex_;
  mutable std::string failure_;
};

}  // namespace

std::vector<ComputeDevice> cuda_devices() {
  const cuda::Devices all = cuda::find_devices();
  std::vector<ComputeDevice> devices;
  for (const cuda::DeviceInfo& device : all.found) devices.push_back(asked(device));
  for (const cuda::DeviceInfo& device : all.too_old)
    devices.push_back({.number = device.index,
                       .name = device.name,
                       .capability = device.capability,
                       .memory = device.memory,
                       .why_not = "kernels need compute capability 8.0 or later"});
  std::ranges::sort(devices, {}, &ComputeDevice::number);
  return devices;
}

std::string why_no_cuda() { return chosen_devices({}).why_none; }

bool too_little_for_cuda(double multiply_adds) { return multiply_adds < cuda::work_of_a_start(); }

std::shared_ptr<const Backend> cuda_backend(bool falls_back, Products products, const CudaChoice& choice) {
  return std::make_shared<const CudaBackend>(falls_back, products, choice);
}

}  // namespace kvreplay
