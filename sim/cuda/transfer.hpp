#pragma once

#include "data/error.hpp"
#include "sim/cuda/runtime.hpp"

#include <cstddef>
#include <limits>
#include <vector>

// Whole arrays to a device and back.

namespace kvreplay::cuda {

/// A copy of anything with data() and size() on the calling thread's device.
template <class T, class Numbers>
Buffer<T> uploaded(const Numbers& numbers, const Stream& stream) {
  Buffer<T> buffer(static_cast<std::size_t>(numbers.size()));
  copy(buffer.data(), numbers.data(), buffer.size(), stream);
  return buffer;
}

/// The first n numbers, when all that the stream has to do is done.
template <class T>
std::vector<T> downloaded(const Buffer<T>& buffer, std::size_t n, const Stream& stream) {
  std::vector<T> numbers(n);
  copy(numbers.data(), static_cast<const T*>(buffer.data()), n, stream);
  stream.synchronize();
  return numbers;
}

/// Kernels count rows and tokens in 32 bits.
inline int narrow(std::ptrdiff_t n) {
  if (n > std::numeric_limits<int>::max()) throw InputError("a head group of more than 2^31 rows or tokens");
  return static_cast<int>(n);
}

}  // namespace kvreplay::cuda
