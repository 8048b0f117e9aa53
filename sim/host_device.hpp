#pragma once

/// For functions that kernels and the processor share.
#if defined(__CUDACC__)
#define KVREPLAY_HOST_DEVICE __host__ __device__
#else
#define KVREPLAY_HOST_DEVICE
#endif
