#pragma once

#include "sim/backend/backend_cuda.hpp"

// CUDA backend as a separate library, which a build without CUDA loads at run time if it finds it
// (plugin_loader.cpp). The library has its own copy of sim, and exports one symbol. Objects of types in our
// headers cross the boundary: both sides must be built from the same headers.

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
