#include "sim/backend/backend_cuda.hpp"
#include "sim/cuda/runtime.hpp"

// In the place of the devices where there is no CUDA Toolkit.

namespace kvreplay {

std::string why_no_cuda() { return "this build has no CUDA backend"; }

int cuda_capability() { throw cuda::DeviceError(why_no_cuda()); }

std::shared_ptr<const Backend> cuda_backend(bool /*falls_back*/, Products /*products*/,
                                            std::optional<int> /*share*/) {
  throw cuda::DeviceError(why_no_cuda());
}

}  // namespace kvreplay
