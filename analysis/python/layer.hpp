#pragma once

#include "data/dump.hpp"

#include <cstddef>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::python {

namespace nb = nanobind;

/// Arrays in C order, as kvreplay._arrays.numbers() and booleans() give them.
using Numbers = nb::ndarray<const double, nb::c_contig, nb::device::cpu>;
using Booleans = nb::ndarray<const bool, nb::c_contig, nb::device::cpu>;

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

/// An array in the host's memory, kept alive by a reference.
struct HostArray {
  nb::ndarray<nb::ro> numbers;
  bool bfloat = false;  ///< 16 bits each that are a bfloat16's
};

/// One layer's arrays as a dump, and the arrays themselves, so that they stay.
class Layer {
 public:
  /// `arrays`: by their tensors' names. `manifest`: as Dump::of_memory() takes it.
  Layer(const nb::dict& arrays, const std::string& manifest, std::optional<Index> prompt_len,
        std::vector<Index> positions);

  const Dump& dump() const { return *dump_; }

 private:
  std::vector<HostArray> arrays_;
  std::optional<Dump> dump_;
};

void bind_layer(nb::module_& module);

}  // namespace kvreplay::python
