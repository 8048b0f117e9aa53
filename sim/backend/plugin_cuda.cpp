#include "sim/backend/plugin.hpp"

const kvreplay::CudaPlugin kvreplay_cuda_plugin{
    .build = kvreplay::kPluginBuild,
    .devices = kvreplay::cuda_devices,
    .why_none = kvreplay::why_no_cuda,
    .too_little = kvreplay::too_little_for_cuda,
    .backend = kvreplay::cuda_backend,
};
