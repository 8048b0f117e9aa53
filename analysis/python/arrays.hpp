#pragma once

#include "data/dump.hpp"

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <utility>
#include <vector>

namespace kvreplay::python {

namespace nb = nanobind;

/// An array in the host's memory, kept alive by a reference.
struct HostArray {
  nb::ndarray<nb::ro> numbers;
  bool bfloat = false;  ///< 16 bits each that are a bfloat16's
};

/// An array from NumPy, torch or any object with DLPack or the buffer protocol. Host memory is not copied;
/// device memory is copied to the host if this build has a CUDA backend. `name` appears in error messages.
/// Throws InputError.
HostArray array_of(const char* name, nb::handle object);

/// A tensor of a layer, in floating point.
MemoryArray tensor_of(Tensor tensor, const HostArray& array);

/// [d0, d1, ...] of any real numbers, in float64, C order. Throws InputError for another shape (-1: any
/// extent), for NaN and infinity unless they are allowed, and for integers that no float64 is.
std::vector<double> numbers_of(const char* name, nb::handle object, std::vector<Index>& shape,
                               bool finite = true);

/// [d0, d1, ...] of booleans, read and refused as numbers_of() does.
std::vector<std::uint8_t> booleans_of(const char* name, nb::handle object, std::vector<Index>& shape);

/// A NumPy array that has these numbers.
template <class Element, class T>
nb::object numpy_of(std::vector<T>&& values, const std::vector<std::size_t>& shape) {
  static_assert(sizeof(Element) == sizeof(T));
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, Element>(reinterpret_cast<Element*>(kept->data()), shape.size(),
                                                  shape.data(), owner));
}
template <class T>
nb::object numpy_of(std::vector<T>&& values, const std::vector<std::size_t>& shape) {
  return numpy_of<T, T>(std::move(values), shape);
}

inline std::size_t extent(Index n) { return static_cast<std::size_t>(n); }

}  // namespace kvreplay::python
