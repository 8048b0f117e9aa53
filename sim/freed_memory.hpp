#pragma once

#include <cstdlib>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace kvreplay {

/// Keeps freed buffers of up to 1 GiB for the next head group, which needs the same again: handed back to the
/// system, their pages would be cleared anew each time. For `main`, before the first allocation of note.
inline void keep_freed_memory() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
}

}  // namespace kvreplay
