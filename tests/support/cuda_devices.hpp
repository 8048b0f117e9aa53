#pragma once

#include "sim/cuda/runtime.hpp"
#include "tests/support/catch.hpp"

#include <vector>

namespace kvreplay::test {

/// Every device that can run kernels. Where there is none the test counts as skipped.
inline std::vector<cuda::DeviceInfo> all_devices() {
  const cuda::Devices devices = cuda::find_devices();
  if (devices.found.empty()) WARN("skipped: " << devices.why_none);
  return devices.found;
}

}  // namespace kvreplay::test
