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

/// The last w prompt queries, clipped to the prompt and to the queries that are there.
inline RowRange window_rows(std::ptrdiff_t l, std::ptrdiff_t first_query, std::ptrdiff_t w) {
  return {std::clamp(std::max(l - w, first_query), std::ptrdiff_t{0}, l), l};
}
/// The decoding steps l..T-1, as far as their queries are there; empty where there are none.
inline RowRange future_rows(std::ptrdiff_t l, std::ptrdiff_t T, std::ptrdiff_t first_query) {
  return {std::clamp(first_query, l, T), T};
}

}  // namespace kvreplay
