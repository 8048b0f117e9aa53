#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// Interface to the CUDA runtime for the rest of the program: devices, memory, streams, events. It has two
// implementations: runtime_cuda.cpp, and runtime_emulated.cpp. In the second one the processor emulates the
// device, so that kernels are tested on machines without a device.

namespace kvreplay::cuda {

/// A call that the device or its driver refused: one line.
struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// Not enough device memory: one line with what was wanted and what is free.
struct OutOfDeviceMemory : DeviceError {
  using DeviceError::DeviceError;
};

struct DeviceInfo {
  int index = 0;
  std::string name;
  int capability = 0;  ///< 10 major + minor: 90 is 9.0
  int multiprocessors = 0;
  std::size_t memory = 0;  ///< bytes
};

/// Devices that kernels can be compiled for, capability 8.0 and later; where there are none, `why_none` is
/// one clause. device_code() tells whether this build has code for a device and whether the device works;
/// that call takes memory on the device.
struct Devices {
  std::vector<DeviceInfo> found;
  std::string why_none;
  std::vector<DeviceInfo> too_old;
};
Devices find_devices();

/// Code of this build that a device runs.
struct DeviceCode {
  int architecture = 0;   ///< target of the code, 10 major + minor: the value of __CUDA_ARCH__ in it
  bool from_ptx = false;  ///< compiled by the driver: this build has no code for the device itself
};
/// Code of the calling thread's device. Throws DeviceError, one clause, where there is none or the device
/// does not work.
DeviceCode device_code();
/// The architectures that this build has code for, lowest first; none where the compiler did not say.
std::vector<int> built_architectures();
/// CUDA's: the newest that the driver supports, and the runtime's; 10 major + minor.
struct Versions {
  int driver = 0, runtime = 0;
};
Versions versions();
/// Multiply-adds that a processor does while a device starts (its context, its code): fewer are done sooner
/// there.
double work_of_a_start();
/// "8.0": of a capability, an architecture or a version.
inline std::string dotted(int number) {
  return std::to_string(number / 10) + "." + std::to_string(number % 10);
}

/// Bytes free on the calling thread's device.
std::size_t free_memory();
/// The calling thread's device from now on.
void use_device(int index);
int current_device();
/// Capability of that device, 10 major + minor.
int capability();
/// Bytes of shared memory that one of its blocks may take.
std::size_t shared_memory_limit();

/// Work that runs in order. Belongs to the device that is current when it is made, and to one thread.
class Stream {
 public:
  Stream();
  ~Stream();  // NOLINT(performance-trivially-destructible): only where there is no device
  Stream(Stream&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Stream& operator=(Stream&&) = delete;

  /// To put work on.
  void* handle() const;
  /// Returns when all is done; throws DeviceError where something failed meanwhile.
  void synchronize() const;
  /// Later work waits until all that `other` has now is done.
  void wait_for(const Stream& other) const;

 private:
  void* handle_ = nullptr;
};

/// A place in what a stream does, and the time when it came to it.
class Event {
 public:
  Event();
  ~Event();  // NOLINT(performance-trivially-destructible)
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(const Stream& stream);
  /// True if all that the stream had to do when it was recorded is done, and waiting for that. One that was
  /// never recorded is reached.
  bool reached() const;
  void wait() const;
  /// Waits for both.
  static double milliseconds(const Event& from, const Event& to);

 private:
  void* handle_ = nullptr;
};

enum class Place { device, pinned_host };

namespace detail {
void* allocate(Place place, std::size_t bytes);
void release(Place place, void* memory) noexcept;
/// Not from ordinary host memory to a device.
void copy(void* to, const void* from, std::size_t bytes, const Stream& stream);
/// Between any; returns when all that the stream had to do is done.
void copy_now(void* to, const void* from, std::size_t bytes, const Stream& stream);
/// By way of pinned memory where one side is ordinary host memory.
void staged_copy(void* to, const void* from, std::size_t bytes, const Stream& stream);
void fill_zero(void* to, std::size_t bytes, const Stream& stream);
}  // namespace detail

/// True if it is ordinary host memory, neither a device's nor pinned.
bool is_pageable(const void* memory);

/// n numbers of memory that is not initialised. It is used again at once when it is released, so the thread
/// that put work on them releases it: that waits for what the thread's streams still have to do.
template <class T, Place kPlace = Place::device>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t n)
      : data_(n == 0 ? nullptr : static_cast<T*>(detail::allocate(kPlace, n * sizeof(T)))), size_(n) {}
  ~Buffer() { detail::release(kPlace, data_); }
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  T* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

template <class T>
using PinnedBuffer = Buffer<T, Place::pinned_host>;

/// Host to device, device to host or within the device. Ordinary host memory has been read, or has been
/// written, when the call returns; pinned memory must stay until the stream is synchronised.
template <class T>
void copy(T* to, const T* from, std::size_t n, const Stream& stream) {
  if (n > 0) detail::staged_copy(to, from, n * sizeof(T), stream);
}
template <class T>
void fill_zero(T* to, std::size_t n, const Stream& stream) {
  if (n > 0) detail::fill_zero(to, n * sizeof(T), stream);
}
template <class T>
void fill_zero(const Buffer<T>& buffer, const Stream& stream) {
  fill_zero(buffer.data(), buffer.size(), stream);
}

}  // namespace kvreplay::cuda
