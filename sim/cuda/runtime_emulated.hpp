#pragma once

#include <cstddef>

// What tests can set of the processor that plays the devices.

namespace kvreplay::cuda {

/// While it lives, no allocation above `bytes` succeeds on any emulated device, on any thread. One at a time.
class EmulatedMemory {
 public:
  explicit EmulatedMemory(std::size_t bytes);
  ~EmulatedMemory();
  EmulatedMemory(const EmulatedMemory&) = delete;
  EmulatedMemory& operator=(const EmulatedMemory&) = delete;
};

}  // namespace kvreplay::cuda
