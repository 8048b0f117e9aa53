#pragma once

#include "sim/backend.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay {

/// All GPUs of this machine, in CUDA's order, each with the code that it runs; none where the build has no
/// CUDA backend or the machine has no driver (see why_no_cuda()).
std::vector<ComputeDevice> cuda_devices();

/// Why this machine and build cannot compute on a CUDA device, as one clause; empty where they can.
std::string why_no_cuda();

/// True if the CPU finishes so many multiply-adds before a device has started.
bool too_little_for_cuda(double multiply_adds);

/// Choice among a machine's GPUs. Without `share` and `number`: all GPUs that are as capable as the best one.
struct CudaChoice {
  /// Index share % count of these GPUs: for processes that share a machine.
  std::optional<int> share = {};
  /// The GPU of this CUDA index.
  std::optional<int> number = {};
};

/// Backend for the CUDA devices that are as capable as the best one with code in this build, so that two runs
/// give the same bits. Each call runs on the device with the fewest calls. With `falls_back`, the CPU takes
/// over a call whose memory does not fit on a device even when no other call is there. It also takes over all
/// calls from the first device failure on. Without `falls_back`, cuda::OutOfDeviceMemory and
/// cuda::DeviceError reach the caller. `products` applies to token metrics; all other computations use
/// float32 products. Throws cuda::DeviceError where there is no such device, or no code for it.
std::shared_ptr<const Backend> cuda_backend(bool falls_back, Products products = Products::f32,
                                            const CudaChoice& choice = {});

}  // namespace kvreplay
