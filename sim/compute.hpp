#pragma once

#include "sim/schedule.hpp"

#include <string_view>

namespace kvreplay {

class Backend;  // sim/backend.hpp
const Backend& cpu_backend();

enum class Precision { f32, f64, tensor };
constexpr std::string_view name_of(Precision precision) {
  return precision == Precision::f32 ? "f32" : precision == Precision::f64 ? "f64" : "tensor";
}
/// True for float32, also where matrix units round products further (tensor).
constexpr bool in_float32(Precision precision) { return precision != Precision::f64; }

/// Precision of the products in a matrix product on a device.
enum class Products {
  f32,    ///< as good as float32's own
  tensor  ///< one half-precision product: about 3 digits, enough to rank
};

/// Resources of a computation: threads, a backend for the work that has device code, and the default
/// precision of numbers. `workers` and `backend` must outlive this object.
struct Compute {
  Compute(Workers& threads, const Backend& hardware = cpu_backend(),  // NOLINT: threads say enough
          Precision numbers = Precision::f32)
      : workers(threads), backend(hardware), precision(numbers) {}

  Workers& workers;
  const Backend& backend;
  Precision precision;
};

}  // namespace kvreplay
