#pragma once

#include "sim/backend/backend_cuda.hpp"

// The CUDA backend as a library of its own, which a build without it loads where it is found
// (plugin_loader.cpp). The library has its own copy of sim, and shows one symbol. Objects of our headers go
// in and out: both must be built from the same ones.

namespace kvreplay {

/// Version, compiler, Eigen, and a hash of our headers, of this build (plugin_build.cmake).
extern const char kPluginBuild[];

struct CudaPlugin {
  const char* build;  ///< the library's kPluginBuild; stays the first, to be read whatever follows
  decltype(&cuda_devices) devices;
  decltype(&why_no_cuda) why_none;
  decltype(&too_little_for_cuda) too_little;
  decltype(&cuda_backend) backend;
};

}  // namespace kvreplay

extern "C" const kvreplay::CudaPlugin kvreplay_cuda_plugin;
