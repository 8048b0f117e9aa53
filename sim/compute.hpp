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
/// Whether numbers are float32, where matrix units round them further too.
constexpr bool in_float32(Precision precision) { return precision != Precision::f64; }

/// How the products of a matrix product are formed on a device.
enum class Products {
  f32,    ///< as good as float32's own
  tensor  ///< one half-precision product: about 3 digits, enough to rank
};

/// What a computation runs on: these threads, this backend for what it computes otherwise than the CPU, and
/// numbers of this precision where it is not said otherwise. What it names must outlive it.
struct Compute {
  Compute(Workers& threads, const Backend& hardware = cpu_backend(),  // NOLINT: threads say enough
          Precision numbers = Precision::f32)
      : workers(threads), backend(hardware), precision(numbers) {}

  Workers& workers;
  const Backend& backend;
  Precision precision;
};

}  // namespace kvreplay
