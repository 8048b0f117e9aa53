#include "sim/cuda/runtime.hpp"

#include <cuda_runtime.h>
#include <map>
#include <mutex>

// Part of this build's code that a device runs, found with a kernel that is compiled as all others are.

namespace kvreplay::cuda {
namespace {

__global__ void any_kernel() {}

std::string joined(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size(); ++i)
    text += (i == 0 ? "" : i + 1 < numbers.size() ? ", " : " and ") + dotted(numbers[i]);
  return text;
}

std::string named(int device, const cudaDeviceProp& properties) {
  return "GPU " + std::to_string(device) + " (" + properties.name + ")";
}

DeviceCode ask_device(int device) {
  cudaFuncAttributes of{};
  const cudaError_t error = cudaFuncGetAttributes(&of, any_kernel);
  if (error == cudaSuccess) return {of.ptxVersion, of.binaryVersion > of.ptxVersion};
  cudaGetLastError();  // not to be found by the next call
  cudaDeviceProp properties{};
  cudaGetDeviceProperties(&properties, device);
  const int needed = 10 * properties.major + properties.minor;
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
    const std::string has = joined(built_architectures());
    throw DeviceError(named(device, properties) + " has compute capability " + dotted(needed) +
                      ", and this build has code for " + (has.empty() ? "others" : has) +
                      " (CUDAARCHS=" + std::to_string(needed) + " when it is built adds it)");
  }
  throw DeviceError(named(device, properties) + ": " + cudaGetErrorString(error));
}

}  // namespace

std::vector<int> built_architectures() {
#if defined(__CUDA_ARCH_LIST__)
  std::vector<int> architectures{__CUDA_ARCH_LIST__};
  for (int& architecture : architectures) architecture /= 10;
  return architectures;
#else
  return {};
#endif
}

DeviceCode device_code() {
  static std::mutex mutex;
  static std::map<int, DeviceCode> known;
  const int device = current_device();
  const std::lock_guard lock(mutex);
  const auto found = known.find(device);
  if (found != known.end()) return found->second;
  return known[device] = ask_device(device);
}

}  // namespace kvreplay::cuda
