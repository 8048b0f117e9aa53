#include "sim/cuda/block_list.hpp"
#include "sim/cuda/cuda_error.hpp"
#include "sim/cuda/runtime.hpp"

#include <algorithm>
#include <cuda_runtime_api.h>
#include <map>
#include <mutex>
#include <new>
#include <unordered_map>

namespace kvreplay::cuda {
namespace {

/// Streams on which the calling thread put work since it waited for them.
thread_local std::vector<cudaStream_t> unfinished;

cudaStream_t stream_of(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle()); }

/// An attribute of the calling thread's device.
int attribute(cudaDeviceAttr which) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, current_device()));
  return value;
}

/// Waits for all work that the calling thread put on streams without waiting for it. The next call reports
/// failures.
void finish_own_work() noexcept {
  for (const cudaStream_t stream : unfinished) cudaStreamSynchronize(stream);
  unfinished.clear();
}

// Memory that is released is kept for the next request of its size: to get it from the driver and to give it
// back makes the whole device wait.

constexpr int kHost = -1;

struct Block {
  int where;  ///< a device, or kHost
  std::size_t bytes;
};
struct Memory {
  std::mutex mutex;
  std::unordered_map<void*, Block> in_use;
  std::map<int, BlockList> kept;
  std::map<int, std::size_t> most_kept;  ///< bytes
};
Memory& memory_of_all() {
  static Memory& all = *new Memory;  // there to the end: the driver may be gone before
  return all;
}

cudaError_t from_driver(int where, void** memory, std::size_t bytes) {
  return where == kHost ? cudaMallocHost(memory, bytes) : cudaMalloc(memory, bytes);
}
void to_driver(int where, void* memory) {
  if (where == kHost)
    cudaFreeHost(memory);
  else
    cudaFree(memory);
}

/// Half of a device's memory, so that other programs find some; of the host's a small part.
std::size_t most_kept(int where) {
  if (where == kHost) return std::size_t{1} << 30;
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total));
  return total / 2;
}

void give_back_kept(int where) {
  Memory& all = memory_of_all();
  std::vector<void*> blocks;
  {
    const std::lock_guard lock(all.mutex);
    blocks = all.kept[where].take_all();
  }
  for (void* block : blocks) to_driver(where, block);
}

[[noreturn]] void throw_out_of_memory(int where, std::size_t bytes) {
  std::string line = where == kHost ? "out of pinned host memory: " : "out of device memory: ";
  line += std::to_string(bytes) + " bytes wanted";
  if (where != kHost) line += ", " + std::to_string(free_memory()) + " free";
  throw OutOfDeviceMemory(line);
}

}  // namespace

Devices find_devices() {
  Devices devices;
  int n = 0;
  const cudaError_t error = cudaGetDeviceCount(&n);
  if (error != cudaSuccess || n == 0) {
    devices.why_none = error == cudaErrorInsufficientDriver ? "the NVIDIA driver is missing or too old"
                       : error == cudaSuccess || error == cudaErrorNoDevice
                           ? "there is no NVIDIA GPU"
                           : std::string("the CUDA runtime says: ") + cudaGetErrorString(error);
    return devices;
  }
  for (int i = 0; i < n; ++i) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    const int capability = 10 * properties.major + properties.minor;
    (capability < 80 ? devices.too_old : devices.found)
        .push_back(
            {i, properties.name, capability, properties.multiProcessorCount, properties.totalGlobalMem});
  }
  if (devices.found.empty()) devices.why_none = "no GPU here has compute capability 8.0 or later";
  return devices;
}

std::size_t free_memory() {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total));
  Memory& all = memory_of_all();
  const std::lock_guard lock(all.mutex);
  return free + all.kept[current_device()].bytes();
}

void use_device(int index) { check(cudaSetDevice(index)); }

Versions versions() {
  const auto in_tens = [](int version) { return version / 1000 * 10 + version % 1000 / 10; };
  int driver = 0, runtime = 0;
  check(cudaDriverGetVersion(&driver));
  check(cudaRuntimeGetVersion(&runtime));
  return {in_tens(driver), in_tens(runtime)};
}

double work_of_a_start() { return 2e10; }  // 0.35 s on an H200's machine, at a few cores' 60 G/s

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device));
  return device;
}

bool is_pageable(const void* memory) {
  cudaPointerAttributes of{};
  check(cudaPointerGetAttributes(&of, memory));
  return of.type == cudaMemoryTypeUnregistered;
}

int capability() {
  return 10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor);
}

std::size_t shared_memory_limit() {
  return static_cast<std::size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
}

Stream::Stream() {
  cudaStream_t made = nullptr;
  check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
  handle_ = made;
}
Stream::~Stream() {
  if (handle_ == nullptr) return;
  const auto own = static_cast<cudaStream_t>(handle_);
  if (std::erase(unfinished, own) > 0) cudaStreamSynchronize(own);
  cudaStreamDestroy(own);
}
void* Stream::handle() const {
  const auto own = static_cast<cudaStream_t>(handle_);
  if (std::find(unfinished.begin(), unfinished.end(), own) == unfinished.end()) unfinished.push_back(own);
  return handle_;
}
void Stream::synchronize() const {
  const auto own = static_cast<cudaStream_t>(handle_);
  check(cudaStreamSynchronize(own));
  std::erase(unfinished, own);
}
void Stream::wait_for(const Stream& other) const {
  cudaEvent_t now = nullptr;
  check(cudaEventCreateWithFlags(&now, cudaEventDisableTiming));
  cudaError_t error = cudaEventRecord(now, stream_of(other));
  if (error == cudaSuccess) error = cudaStreamWaitEvent(stream_of(*this), now, 0);
  cudaEventDestroy(now);
  check(error);
}

Event::Event() {
  cudaEvent_t made = nullptr;
  check(cudaEventCreate(&made));
  handle_ = made;
}
Event::~Event() { cudaEventDestroy(static_cast<cudaEvent_t>(handle_)); }
void Event::record(const Stream& stream) {
  check(cudaEventRecord(static_cast<cudaEvent_t>(handle_), stream_of(stream)));
}
bool Event::reached() const {
  const cudaError_t error = cudaEventQuery(static_cast<cudaEvent_t>(handle_));
  if (error == cudaErrorNotReady) {
    cudaGetLastError();  // not to be found by the next call
    return false;
  }
  check(error);
  return true;
}
void Event::wait() const { check(cudaEventSynchronize(static_cast<cudaEvent_t>(handle_))); }
double Event::milliseconds(const Event& from, const Event& to) {
  check(cudaEventSynchronize(static_cast<cudaEvent_t>(to.handle_)));
  float elapsed = 0;
  check(cudaEventElapsedTime(&elapsed, static_cast<cudaEvent_t>(from.handle_),
                             static_cast<cudaEvent_t>(to.handle_)));
  return static_cast<double>(elapsed);
}

namespace detail {

void* allocate(Place place, std::size_t bytes) {
  const int where = place == Place::device ? current_device() : kHost;
  Memory& all = memory_of_all();
  std::size_t taken = BlockList::rounded(bytes);
  {
    const std::lock_guard lock(all.mutex);
    if (void* const kept = all.kept[where].take(taken)) {
      all.in_use[kept] = {where, taken};
      return kept;
    }
    if (!all.most_kept.contains(where)) all.most_kept[where] = most_kept(where);
  }
  void* memory = nullptr;
  cudaError_t error = from_driver(where, &memory, taken);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // not to be found by the next call
    give_back_kept(where);
    taken = bytes;
    error = from_driver(where, &memory, taken);
  }
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw_out_of_memory(where, bytes);
  }
  check(error);
  const std::lock_guard lock(all.mutex);
  all.in_use[memory] = {where, taken};
  return memory;
}

void release(Place place, void* memory) noexcept {
  if (memory == nullptr) return;
  finish_own_work();  // else the next owner would find it in use
  Memory& all = memory_of_all();
  int where = kHost;
  std::vector<void*> beyond;
  try {
    const std::lock_guard lock(all.mutex);
    const auto found = all.in_use.find(memory);
    where = found->second.where;
    BlockList& kept = all.kept[where];
    kept.give(memory, found->second.bytes);
    all.in_use.erase(found);
    beyond = kept.take_beyond(all.most_kept[where]);
  } catch (const std::bad_alloc&) {
    to_driver(place == Place::device ? 0 : kHost, memory);
  }
  for (void* const block : beyond) to_driver(where, block);
}

void copy(void* to, const void* from, std::size_t bytes, const Stream& stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)));
}

void copy_now(void* to, const void* from, std::size_t bytes, const Stream& stream) {
  copy(to, from, bytes, stream);
  stream.synchronize();
}

void fill_zero(void* to, std::size_t bytes, const Stream& stream) {
  check(cudaMemsetAsync(to, 0, bytes, stream_of(stream)));
}

}  // namespace detail
}  // namespace kvreplay::cuda
