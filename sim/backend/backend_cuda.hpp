#pragma once

#include "sim/backend.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <memory>
#include <optional>
#include <string>

namespace kvreplay {

/// Why this machine and build cannot compute on a CUDA device, as one clause; empty where they can.
std::string why_no_cuda();

/// The compute capability of the devices that cuda_backend() takes, 10 major + minor. Throws
/// cuda::DeviceError where why_no_cuda().
int cuda_capability();

/// The CUDA devices of this machine, those that are as capable as the best one, so that two runs give the
/// same bits; a call takes the one with the fewest calls. Where one has no memory for a call, not even with
/// the device to itself, the CPU takes it over if `falls_back`, else cuda::OutOfDeviceMemory goes out.
/// With `share` only one of the devices is taken, that of number share % devices: for processes that share a
/// machine. `products` are those of token metrics; everything else has float32's. Throws cuda::DeviceError
/// where why_no_cuda().
std::shared_ptr<const Backend> cuda_backend(bool falls_back, Products products = Products::f32,
                                            std::optional<int> share = std::nullopt);

}  // namespace kvreplay
