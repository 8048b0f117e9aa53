#pragma once

#include <algorithm>
#include <cstddef>

namespace kvreplay {

/// A run of query positions [begin, end).
struct RowRange {
  std::ptrdiff_t begin = 0;
  std::ptrdiff_t end = 0;
  std::ptrdiff_t count() const { return end > begin ? end - begin : 0; }
};

}  // namespace kvreplay
