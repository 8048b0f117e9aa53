#include "sim/cuda/runtime_emulated.hpp"

#include "sim/cuda/emulation.hpp"
#include "sim/cuda/runtime.hpp"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>

// Every call is done when it returns. Device memory is memory of its own, so that address sanitizer finds
// what compute-sanitizer's memcheck would, and full of NaN until it is written.

namespace kvreplay::cuda {

using Clock = std::chrono::steady_clock;

namespace {

thread_local int current = 0;

constexpr std::size_t kMemory = std::size_t{1} << 30;
std::atomic<std::size_t> available{kMemory};

std::mutex blocks_mutex;
struct Block {
  std::size_t bytes;
  Place place;
};
std::map<const std::byte*, Block> blocks;  // a device's and pinned ones

/// The block that has this byte; null: ordinary host memory.
const Block* block_of(const void* memory) {
  const auto* const at = static_cast<const std::byte*>(memory);
  const auto next = blocks.upper_bound(at);
  if (next == blocks.begin()) return nullptr;
  const auto& [first, block] = *std::prev(next);
  return at < first + block.bytes ? &block : nullptr;
}
bool on_device(const void* memory) {
  const std::lock_guard lock(blocks_mutex);
  const Block* const block = block_of(memory);
  return block != nullptr && block->place == Place::device;
}

struct Copies {
  std::atomic<std::int64_t> number{0}, bytes{0};
  void add(std::size_t n) {
    ++number;
    bytes += static_cast<std::int64_t>(n);
  }
};
Copies uploads, downloads;
std::atomic<std::int64_t> fills{0};

void move_bytes(void* to, const void* from, std::size_t bytes) {
  const bool from_device = on_device(from), to_device = on_device(to);
  if (to_device && !from_device) uploads.add(bytes);
  if (from_device && !to_device) downloads.add(bytes);
  std::memcpy(to, from, bytes);
}

}  // namespace

/// One device without and one with matrix units for TF32.
Devices find_devices() {
  return {
      {{0, "the processor, as an old GPU", 75, 2, kMemory}, {1, "the processor, as a GPU", 90, 2, kMemory}},
      {}};
}
std::size_t free_memory() { return available; }
EmulatedMemory::EmulatedMemory(std::size_t bytes) { available = bytes; }
EmulatedMemory::~EmulatedMemory() { available = kMemory; }
void use_device(int index) {
  if (index < 0 || index > 1) throw DeviceError("there is no such emulated device");
  current = index;
}
int current_device() { return current; }
bool is_pageable(const void* memory) {
  const std::lock_guard lock(blocks_mutex);
  return block_of(memory) == nullptr;
}
DeviceRequests emulated_requests() {
  return {emulation::runs(), fills, uploads.number, downloads.number, uploads.bytes, downloads.bytes};
}
int capability() { return current == 0 ? 75 : 90; }
std::size_t shared_memory_limit() { return std::size_t{1024} * (current == 0 ? 64 : 227); }

Stream::Stream() = default;
Stream::~Stream() = default;
void* Stream::handle() const { return handle_; }
void Stream::synchronize() const {}
void Stream::wait_for(const Stream&) const {}

Event::Event() : handle_(new Clock::time_point()) {}
Event::~Event() { delete static_cast<Clock::time_point*>(handle_); }
void Event::record(const Stream&) { *static_cast<Clock::time_point*>(handle_) = Clock::now(); }
bool Event::reached() const { return true; }
void Event::wait() const {}
double Event::milliseconds(const Event& from, const Event& to) {
  return std::chrono::duration<double, std::milli>(*static_cast<Clock::time_point*>(to.handle_) -
                                                   *static_cast<Clock::time_point*>(from.handle_))
      .count();
}

namespace detail {

void* allocate(Place place, std::size_t bytes) {
  if (place == Place::device && bytes > free_memory())
    throw OutOfDeviceMemory("out of device memory: " + std::to_string(bytes) + " bytes wanted, " +
                            std::to_string(free_memory()) + " free");
  void* memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0xff, bytes);
  const std::lock_guard lock(blocks_mutex);
  blocks[static_cast<const std::byte*>(memory)] = {bytes, place};
  return memory;
}
void release(Place, void* memory) noexcept {
  if (memory == nullptr) return;
  {
    const std::lock_guard lock(blocks_mutex);
    blocks.erase(static_cast<const std::byte*>(memory));
  }
  std::free(memory);
}
void copy(void* to, const void* from, std::size_t bytes, const Stream&) {
  // A device may do so when the memory is another's.
  if (is_pageable(from) && !is_pageable(to))
    throw std::logic_error("a copy from ordinary host memory that nobody waits for");
  move_bytes(to, from, bytes);
}
void copy_now(void* to, const void* from, std::size_t bytes, const Stream&) { move_bytes(to, from, bytes); }
void fill_zero(void* to, std::size_t bytes, const Stream&) {
  ++fills;
  std::memset(to, 0, bytes);
}

}  // namespace detail
}  // namespace kvreplay::cuda
