#pragma once

#include "sim/backend.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay {

/// All GPUs of this machine, in CUDA's order, each asked for the code that it runs; none where the build has
/// no CUDA backend or there is no driver (why_no_cuda() says which).
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

/// The CUDA devices of this machine, those that are as capable as the best one that has code in this build,
/// so that two runs give the same bits; a call takes the one with the fewest calls. If it `falls_back`, the
/// CPU takes over the calls that a device has no memory for, not even with the device to itself, and all
/// calls from the first on at which a device fails; else cuda::OutOfDeviceMemory and cuda::DeviceError go
/// out. `products` are those of token metrics; everything else has float32's. Throws cuda::DeviceError where
/// there is no such device, or no code for it.
std::shared_ptr<const Backend> cuda_backend(bool falls_back, Products products = Products::f32,
                                            const CudaChoice& choice = {});

}  // namespace kvreplay
