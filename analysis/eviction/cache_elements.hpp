#pragma once

#include "data/dump.hpp"
#include "sim/compression/compressed_cache.hpp"

namespace kvreplay {

/// The sizes of a key's and a value's numbers as the dump stores them.
CacheElements cache_elements(const Dump& dump);

}  // namespace kvreplay
