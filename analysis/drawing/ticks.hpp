#pragma once

#include "data/dump.hpp"

#include <string>
#include <vector>

namespace kvreplay::png {

/// About three digits: "0.125", "-1.2e3", "47e-9"; exponents are multiples of 3 and stand from 1e3 up and
/// below 1e-3.
std::string short_number(double value);

/// The indices 0..count-1 to label, in equal round steps (powers of two where `count` is a multiple of 16,
/// otherwise 1, 2, 5, 10, ...) of at least `spacing` pixels; `cell` is the pixels that an index takes.
std::vector<Index> tick_indices(Index count, Index cell, Index spacing);

}  // namespace kvreplay::png
