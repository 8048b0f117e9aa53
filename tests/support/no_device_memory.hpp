#pragma once

#include <memory>

namespace kvreplay::test {

/// While it lives, no device memory is left to the calling thread's device, for anyone. Where the processor
/// plays the devices that is said; a real device's memory is taken, so nothing else may use it meanwhile:
/// tests that do have the tag [hog].
class NoDeviceMemory {
 public:
  NoDeviceMemory();
  ~NoDeviceMemory();
  NoDeviceMemory(const NoDeviceMemory&) = delete;
  NoDeviceMemory& operator=(const NoDeviceMemory&) = delete;

 private:
  struct Taken;
  std::unique_ptr<Taken> taken_;
};

}  // namespace kvreplay::test
