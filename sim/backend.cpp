#include "sim/backend.hpp"

#include "sim/cuda/runtime.hpp"

namespace kvreplay {
namespace {

/// Devices take turns; a thread that comes back finds its own again.
void use_some_device() {
  static const std::vector<cuda::DeviceInfo> devices = cuda::find_devices().found;
  static std::atomic<std::size_t> threads{0};
  thread_local const std::size_t turn = threads.fetch_add(1);
  if (!devices.empty()) cuda::use_device(devices[turn % devices.size()].index);
}

template <class OnDevice, class OnCpu>
auto run(const Backend& backend, OnDevice on_device, OnCpu on_cpu) {
  if (!backend.cuda) return on_cpu();
  try {
    use_some_device();
    return on_device();
  } catch (const cuda::OutOfDeviceMemory&) {
    if (!backend.falls_back) throw;
    backend.fell_back->fetch_add(1);
  }
  return on_cpu();
}

}  // namespace

std::string why_no_cuda() { return cuda::find_devices().why_none; }

TokenMetrics token_metrics(const Backend& backend, const HeadGroup<float>& group, const TokenOptions& options,
                           Workers& workers) {
  return run(
      backend, [&] { return token_metrics_cuda(group, options, workers); },
      [&] { return token_metrics_cpu(group, options, workers); });
}

TokenMetrics token_metrics(const Backend&, const HeadGroup<double>& group, const TokenOptions& options,
                           Workers& workers) {
  return token_metrics_cpu(group, options, workers);
}

}  // namespace kvreplay
