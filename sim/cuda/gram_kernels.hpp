#pragma once

#include "sim/cuda/runtime.hpp"

#include <cstddef>

// X^T X of a matrix [rows][d] on a device. The product's 64 x 64 tiles on and above the diagonal are formed,
// each for one part of the rows a block; then the parts add up in order. A number is always added up by one
// thread in the order of the rows: two runs give the same bits.

namespace kvreplay::cuda {

/// The first n rows of a float32 matrix [..][d]. Pointers are to device memory.
struct GramRows {
  const float* x;
  std::ptrdiff_t n;
  int d;                           ///< at least 1
  const float* centre = nullptr;   ///< [d], which x is taken less of, in float32; null: 0
  std::ptrdiff_t column_step = 0;  ///< 0: rows of x lie one after the other; else its columns, so far apart
};

enum class GramProducts {
  single,  ///< float32, sums over 128 rows in float32, over those in float64
  exact,   ///< float64, in which a product of two float32 numbers is exact; sums too
};

/// Partition of the work, from the sizes alone: so are the sums, to the bit.
struct GramPlan {
  int tiles;
  int parts;                ///< of the rows
  std::ptrdiff_t per_part;  ///< rows
};
GramPlan gram_plan(std::ptrdiff_t n, int d);
/// Numbers that the tiles of all parts take: less than 4096 (512 + tiles).
std::size_t gram_parts_size(const GramPlan& plan);

/// gram [d][d] := X^T X, exactly symmetric, 0 where there are no rows. `parts` [gram_parts_size(plan)] is
/// scratch memory, which must stay until the stream has done this.
void gram_pass(const GramRows& x, GramProducts products, const GramPlan& plan, double* parts, double* gram,
               const Stream& stream);

}  // namespace kvreplay::cuda
