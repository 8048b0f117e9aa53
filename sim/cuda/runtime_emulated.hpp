#pragma once

#include <cstddef>
#include <cstdint>

// What tests can set, and learn, of the processor that plays the devices.

namespace kvreplay::cuda {

/// While it lives, no allocation above `bytes` succeeds on any emulated device, on any thread. One at a time.
class EmulatedMemory {
 public:
  explicit EmulatedMemory(std::size_t bytes);
  ~EmulatedMemory();
  EmulatedMemory(const EmulatedMemory&) = delete;
  EmulatedMemory& operator=(const EmulatedMemory&) = delete;
};

/// What all threads have asked the emulated devices for since the program began. A copy is a piece of at most
/// 4 MiB (staging.cpp).
struct DeviceRequests {
  std::int64_t launches = 0, fills = 0, uploads = 0, downloads = 0;
  std::int64_t uploaded = 0, downloaded = 0;  ///< bytes

  DeviceRequests operator-(const DeviceRequests& before) const {
    return {launches - before.launches,   fills - before.fills,       uploads - before.uploads,
            downloads - before.downloads, uploaded - before.uploaded, downloaded - before.downloaded};
  }
};
DeviceRequests emulated_requests();

}  // namespace kvreplay::cuda
