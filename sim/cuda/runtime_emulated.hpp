#pragma once

#include <cstddef>
#include <cstdint>

// Controls and counters of the emulated devices, for tests.

namespace kvreplay::cuda {

/// While it lives, no allocation above `bytes` succeeds on any emulated device, on any thread. One at a time.
class EmulatedMemory {
 public:
  explicit EmulatedMemory(std::size_t bytes);
  ~EmulatedMemory();
  EmulatedMemory(const EmulatedMemory&) = delete;
  EmulatedMemory& operator=(const EmulatedMemory&) = delete;
};

/// While it lives, no block of any emulated device has more than `bytes` of shared memory: that of a smaller
/// card. One at a time.
class EmulatedSharedMemory {
 public:
  explicit EmulatedSharedMemory(std::size_t bytes);
  ~EmulatedSharedMemory();
  EmulatedSharedMemory(const EmulatedSharedMemory&) = delete;
  EmulatedSharedMemory& operator=(const EmulatedSharedMemory&) = delete;
};

/// While it lives, an emulated device runs code that is written for that architecture, as if this build had
/// no other; 0: none at all. One at a time.
class EmulatedCode {
 public:
  EmulatedCode(int device, int architecture);
  ~EmulatedCode();
  EmulatedCode(const EmulatedCode&) = delete;
  EmulatedCode& operator=(const EmulatedCode&) = delete;

 private:
  int device_;
};

/// Kind of call at which an emulated device can fail.
enum class DeviceCall { find, code, allocate, copy, launch, synchronize };

/// While it lives, the `nth` such call from now on (1: the next), on any thread, throws DeviceError, and so
/// does every later call to any device, as if the device were lost. One at a time.
/// KVREPLAY_EMULATION_FAILURE=launch:3 in the environment sets one for a program's whole life.
class EmulatedFailure {
 public:
  explicit EmulatedFailure(DeviceCall call, int nth = 1);
  ~EmulatedFailure();
  EmulatedFailure(const EmulatedFailure&) = delete;
  EmulatedFailure& operator=(const EmulatedFailure&) = delete;
};

namespace detail {
/// Every emulated call begins here: throws what an EmulatedFailure has it throw.
void emulated_call(DeviceCall call);
}  // namespace detail

/// Requests of all threads to the emulated devices since the program began. A copy counts once for each piece
/// of at most 4 MiB (staging.cpp).
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
