#include "sim/cuda/runtime_cuda.hpp"

#include <algorithm>

namespace kvreplay::cuda {
namespace {

using detail::check;

/// Streams on which the calling thread put work since it waited for them.
thread_local std::vector<cudaStream_t> unfinished;

cudaStream_t stream_of(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle()); }

/// Of the calling thread's device.
int attribute(cudaDeviceAttr which) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, current_device()));
  return value;
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
    if (capability < 75) continue;
    devices.found.push_back(
        {i, properties.name, capability, properties.multiProcessorCount, properties.totalGlobalMem});
  }
  if (devices.found.empty()) devices.why_none = "no GPU here has compute capability 7.5 or later";
  return devices;
}

std::size_t free_memory() {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total));
  return free + detail::kept_memory(current_device());
}

void use_device(int index) { check(cudaSetDevice(index)); }

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

void finish_own_work() noexcept {
  for (const cudaStream_t stream : unfinished) cudaStreamSynchronize(stream);
  unfinished.clear();
}

void copy(void* to, const void* from, std::size_t bytes, const Stream& stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)));
}

void fill_zero(void* to, std::size_t bytes, const Stream& stream) {
  check(cudaMemsetAsync(to, 0, bytes, stream_of(stream)));
}

}  // namespace detail
}  // namespace kvreplay::cuda
