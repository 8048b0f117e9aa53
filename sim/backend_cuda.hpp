#pragma once

#include "sim/backend.hpp"
#include "sim/products.hpp"

#include <memory>
#include <string>

namespace kvreplay {

/// Why this machine and build cannot compute on a CUDA device, as one clause; empty where they can.
std::string why_no_cuda();

/// The CUDA devices of this machine, those that are as capable as the best one, so that two runs give the
/// same bits; a call takes the one with the fewest calls. Where one has no memory for a call, not even with
/// the device to itself, the CPU takes it over if `falls_back`, else cuda::OutOfDeviceMemory goes out.
/// `products` are those of token metrics; everything else has float32's. Throws cuda::DeviceError where
/// why_no_cuda().
std::shared_ptr<const Backend> cuda_backend(bool falls_back, Products products = Products::f32);

}  // namespace kvreplay
