#pragma once

#include "sim/kept_set.hpp"

#include <vector>

namespace kvreplay::test {

/// begin, begin + step, ... below end.
inline std::vector<Index> range(Index begin, Index end, Index step = 1) {
  std::vector<Index> list;
  for (Index p = begin; p < end; p += step) list.push_back(p);
  return list;
}

/// The kept set of tokens from, from + step, ... out of l.
inline KeptSet every(Index l, Index step, Index from) {
  KeptSet kept(static_cast<std::size_t>(l), 0);
  for (const Index p : range(from, l, step)) kept[p] = 1;
  return kept;
}

}  // namespace kvreplay::test
