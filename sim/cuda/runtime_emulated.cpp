#include "sim/cuda/runtime_emulated.hpp"

#include "sim/cuda/emulation.hpp"
#include "sim/cuda/runtime.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

// Every call is done when it returns. Device memory is memory of its own, so that address sanitizer finds
// what compute-sanitizer's memcheck would, and full of NaN until it is written.

namespace kvreplay::cuda {

using Clock = std::chrono::steady_clock;

namespace {

thread_local int current = 0;

constexpr int kDevices = 2;
constexpr const char* kNames[kDevices] = {"the processor, as an old GPU", "the processor, as a GPU"};
constexpr int kCapabilities[kDevices] = {80, 90};
std::array<std::atomic<int>, kDevices> code_of{kCapabilities[0], kCapabilities[1]};

const std::size_t kMemory = [] {
  const char* const given = std::getenv("KVREPLAY_EMULATION_MEMORY");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::size_t{1} << 30;
}();
std::atomic<std::size_t> available{kMemory};
constexpr std::size_t kMostShared = std::size_t{227} << 10;
std::atomic<std::size_t> shared_available{kMostShared};

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

constexpr const char* kCallNames[] = {"find", "code", "allocate", "copy", "launch", "synchronize"};
constexpr int kNoFailure = -1;
/// Calls of that kind up to the one that fails; 0: it has.
struct Failure {
  std::mutex mutex;
  DeviceCall call = DeviceCall::find;
  int left = kNoFailure;

  Failure() {
    const char* const given = std::getenv("KVREPLAY_EMULATION_FAILURE");
    if (given == nullptr) return;
    const std::string_view text = given;
    const std::size_t colon = text.find(':');
    for (std::size_t i = 0; i < std::size(kCallNames); ++i)
      if (text.substr(0, colon) == kCallNames[i]) {
        call = static_cast<DeviceCall>(i);
        left = std::atoi(given + colon + 1);
      }
  }
} failure;

}  // namespace

void detail::emulated_call(DeviceCall call) {
  const std::lock_guard lock(failure.mutex);
  if (failure.left == kNoFailure) return;
  if (failure.left > 0 && (call != failure.call || --failure.left > 0)) return;
  throw DeviceError(std::string("CUDA: the emulated device fails at ") +
                    kCallNames[static_cast<std::size_t>(failure.call)]);
}
EmulatedFailure::EmulatedFailure(DeviceCall call, int nth) {
  const std::lock_guard lock(failure.mutex);
  failure.call = call;
  failure.left = nth;
}
EmulatedFailure::~EmulatedFailure() {
  const std::lock_guard lock(failure.mutex);
  failure.left = kNoFailure;
}

/// One device without and one with matrix units for TF32.
Devices find_devices() {
  try {
    detail::emulated_call(DeviceCall::find);
  } catch (const DeviceError& error) {
    return {{}, error.what(), {}};
  }
  Devices devices;
  for (int i = 0; i < kDevices; ++i) devices.found.push_back({i, kNames[i], kCapabilities[i], 2, kMemory});
  return devices;
}
DeviceCode device_code() {
  detail::emulated_call(DeviceCall::code);
  const int architecture = code_of[static_cast<std::size_t>(current)];
  if (architecture == 0)
    throw DeviceError(std::string("GPU ") + std::to_string(current) + " has no code here");
  return {architecture, architecture < capability()};
}
EmulatedCode::EmulatedCode(int device, int architecture) : device_(device) {
  code_of[static_cast<std::size_t>(device)] = architecture;
}
EmulatedCode::~EmulatedCode() { code_of[static_cast<std::size_t>(device_)] = kCapabilities[device_]; }
std::vector<int> built_architectures() { return {kCapabilities[0], kCapabilities[1]}; }
Versions versions() { return {130, 124}; }
double work_of_a_start() { return 1e4; }

std::size_t free_memory() { return available; }
EmulatedMemory::EmulatedMemory(std::size_t bytes) { available = bytes; }
EmulatedMemory::~EmulatedMemory() { available = kMemory; }
void use_device(int index) {
  if (index < 0 || index >= kDevices) throw DeviceError("there is no such emulated device");
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
int capability() { return kCapabilities[current]; }
std::size_t shared_memory_limit() {
  return std::min<std::size_t>(std::size_t{1024} * (current == 0 ? 64 : 227), shared_available);
}
EmulatedSharedMemory::EmulatedSharedMemory(std::size_t bytes) { shared_available = bytes; }
EmulatedSharedMemory::~EmulatedSharedMemory() { shared_available = kMostShared; }

Stream::Stream() = default;
Stream::~Stream() = default;
void* Stream::handle() const { return handle_; }
void Stream::synchronize() const { detail::emulated_call(DeviceCall::synchronize); }
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
  emulated_call(DeviceCall::allocate);
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
  emulated_call(DeviceCall::copy);
  // A device may do so when the memory is another's.
  if (is_pageable(from) && !is_pageable(to))
    throw std::logic_error("a copy from ordinary host memory that nobody waits for");
  move_bytes(to, from, bytes);
}
void copy_now(void* to, const void* from, std::size_t bytes, const Stream&) {
  emulated_call(DeviceCall::copy);
  move_bytes(to, from, bytes);
}
void fill_zero(void* to, std::size_t bytes, const Stream&) {
  ++fills;
  std::memset(to, 0, bytes);
}

}  // namespace detail
}  // namespace kvreplay::cuda
