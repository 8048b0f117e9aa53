#include "sim/cuda/runtime.hpp"
#include "tests/support/no_device_memory.hpp"

#include <cstddef>
#include <vector>

namespace kvreplay::test {

struct NoDeviceMemory::Taken {
  std::vector<cuda::Buffer<std::byte>> blocks;
};

NoDeviceMemory::NoDeviceMemory() : taken_(std::make_unique<Taken>()) {
  constexpr std::size_t kSmallest = 512;  // what the driver hands out at least
  for (std::size_t bytes = std::size_t{4} << 30; bytes >= kSmallest;) try {
      taken_->blocks.emplace_back(bytes);
    } catch (const cuda::OutOfDeviceMemory&) {
      bytes /= 2;
    }
}
NoDeviceMemory::~NoDeviceMemory() = default;

}  // namespace kvreplay::test
