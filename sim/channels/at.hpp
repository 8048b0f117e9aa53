#pragma once

#include "sim/head_group.hpp"

#include <cstddef>

namespace kvreplay {

/// A channel as an index into a std::vector.
inline std::size_t at(Index c) { return static_cast<std::size_t>(c); }

}  // namespace kvreplay
