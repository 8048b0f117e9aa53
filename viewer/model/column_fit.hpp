#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace kvreplay::viewer {

/// Which columns of these widths stand whole beside each other in `room`, ascending: each that still has room
/// after those before it, and the first one in any case.
std::vector<std::size_t> columns_that_fit(std::span<const float> widths, float room);

}  // namespace kvreplay::viewer
