#pragma once

#include <cstddef>
#include <string_view>

namespace kvreplay {

/// The element types that a dump's tensors may have.
enum class Dtype { f16, bf16, f32, f64 };

constexpr std::size_t size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f16:
    case Dtype::bf16:
      return 2;
    case Dtype::f32:
      return 4;
    case Dtype::f64:
      return 8;
  }
  return 0;
}

constexpr std::string_view name_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f16:
      return "float16";
    case Dtype::bf16:
      return "bfloat16";
    case Dtype::f32:
      return "float32";
    case Dtype::f64:
      return "float64";
  }
  return "?";
}

}  // namespace kvreplay
