#pragma once

#include "data/facts_table.hpp"

#include <cstddef>
#include <string_view>

namespace kvreplay {

/// The element types that a dump's tensors may have.
enum class Dtype { f16, bf16, f32, f64 };

struct DtypeFacts {
  Dtype id;
  std::string_view name;
  std::string_view descr;  ///< as `.npy` headers name it, little-endian; bfloat16 as ml_dtypes writes it
  std::size_t size;        ///< bytes
};
inline constexpr auto kDtypes = facts_table<DtypeFacts>({{Dtype::f16, "float16", "<f2", 2},
                                                         {Dtype::bf16, "bfloat16", "|V2", 2},
                                                         {Dtype::f32, "float32", "<f4", 4},
                                                         {Dtype::f64, "float64", "<f8", 8}});
constexpr std::size_t size_of(Dtype dtype) { return kDtypes[dtype].size; }
constexpr std::string_view name_of(Dtype dtype) { return kDtypes[dtype].name; }

}  // namespace kvreplay
