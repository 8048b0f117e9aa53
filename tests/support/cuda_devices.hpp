#pragma once

#include "sim/cuda/runtime.hpp"
#include "tests/support/catch.hpp"

#include <vector>

namespace kvreplay::test {

/// Every device that can run kernels. Where there is none the test fails, which CTest takes for skipped.
inline std::vector<cuda::DeviceInfo> all_devices() {
  const cuda::Devices devices = cuda::find_devices();
  if (devices.found.empty()) FAIL("skipped: " << devices.why_none);
  return devices.found;
}

/// Calls body on every device.
template <class Body>
void on_devices(Body body) {
  for (const cuda::DeviceInfo& device : all_devices()) {
    INFO(device.name);
    cuda::use_device(device.index);
    body();
  }
}

/// Calls body on the first device: for kernels that do not ask which one they run on.
template <class Body>
void on_a_device(Body body) {
  const std::vector<cuda::DeviceInfo> devices = all_devices();
  INFO(devices.front().name);
  cuda::use_device(devices.front().index);
  body();
}

}  // namespace kvreplay::test
