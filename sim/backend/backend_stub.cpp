#include "sim/backend/backend_cuda.hpp"
#include "sim/cuda/runtime.hpp"

// In the place of the devices where there is no CUDA Toolkit.

namespace kvreplay {

std::vector<ComputeDevice> cuda_devices() { return {}; }

std::string why_no_cuda() { return "this build has no CUDA backend"; }

bool too_little_for_cuda(double /*multiply_adds*/) { return false; }

std::shared_ptr<const Backend> cuda_backend(bool /*falls_back*/, Products /*products*/,
                                            const CudaChoice& /*choice*/) {
  throw cuda::DeviceError(why_no_cuda());
}

}  // namespace kvreplay
