#pragma once

#include <cstdlib>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace kvreplay {

/// Keeps freed buffers of up to `each` bytes, `all` of them together, for the next head group, which needs
/// the same again: handed back to the system, their pages would be cleared anew each time, one interrupt for
/// each. For `main`, before the first allocation of note.
inline void keep_freed_memory(int each = 1 << 30, int all = 1 << 30) {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, each);
  mallopt(M_TRIM_THRESHOLD, all);
#else
  static_cast<void>(each);
  static_cast<void>(all);
#endif
}

}  // namespace kvreplay
