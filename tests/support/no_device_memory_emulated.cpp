#include "sim/cuda/runtime_emulated.hpp"
#include "tests/support/no_device_memory.hpp"

namespace kvreplay::test {

struct NoDeviceMemory::Taken {
  cuda::EmulatedMemory memory{16};
};

NoDeviceMemory::NoDeviceMemory() : taken_(std::make_unique<Taken>()) {}
NoDeviceMemory::~NoDeviceMemory() = default;

}  // namespace kvreplay::test
