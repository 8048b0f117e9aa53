#pragma once

#include <cstddef>

#if defined(KVREPLAY_RACE_CHECK)
#include <deque>
#include <sanitizer/tsan_interface.h>
#include <sys/mman.h>
extern "C" {
void __tsan_read_range(void* at, unsigned long bytes);
void __tsan_write_range(void* at, unsigned long bytes);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#else
#include <memory>
#endif

// What thread sanitizer is told of an emulated kernel, so that it finds the races that the kernel would have
// on a device: device threads are threads to it, ordered by nothing but what orders them there. All of it is
// nothing where a build has no thread sanitizer. Whatever includes this is compiled without it: the
// emulation's own accesses are no device's.

namespace kvreplay::cuda::emulation::race {

#if defined(KVREPLAY_RACE_CHECK)

inline constexpr bool kChecked = true;

/// All that happened before a release of `mark` happens before what follows an acquire of it.
inline void release(void* mark) { __tsan_release(mark); }
inline void acquire(void* mark) { __tsan_acquire(mark); }

inline void read(const void* at, std::size_t bytes) { __tsan_read_range(const_cast<void*>(at), bytes); }
inline void written(void* at, std::size_t bytes) { __tsan_write_range(at, bytes); }

/// While it lives, what the running thread reads and writes is not seen.
class Unseen {
 public:
  Unseen() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unseen() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;
};

/// A thread that did nothing so far.
inline void* new_thread() { return __tsan_create_fiber(0); }
/// Threads that ended keep their numbers for a while: what the next owner of a number does is taken for its
/// first owner's, so that no race of the two is found. There are 8,128 numbers in all.
class Ended {
 public:
  Ended() = default;
  ~Ended() {
    for (void* const thread : threads_) __tsan_destroy_fiber(thread);
  }
  Ended(const Ended&) = delete;
  Ended& operator=(const Ended&) = delete;
  void add(void* thread) {
    threads_.push_back(thread);
    if (threads_.size() <= kRemembered) return;
    __tsan_destroy_fiber(threads_.front());
    threads_.pop_front();
  }

 private:
  static constexpr std::size_t kRemembered = 1500;
  std::deque<void*> threads_;
};
/// The list of the calling thread of the processor; there before whatever ends its threads in it.
inline Ended& ended_threads() {
  static thread_local Ended ended;
  return ended;
}
inline void end_thread(void* thread) { ended_threads().add(thread); }
inline void* this_thread() { return __tsan_get_current_fiber(); }
/// Orders nothing.
inline void go_on_as(void* thread) { __tsan_switch_to_fiber(thread, __tsan_switch_to_fiber_no_sync); }

/// In place of a thread that goes on no more.
inline void release_as(void* thread, void* mark) {
  void* const own = this_thread();
  go_on_as(thread);
  release(mark);
  go_on_as(own);
}

/// Memory that nobody has touched, nor its marks.
class FreshMemory {
 public:
  explicit FreshMemory(std::size_t bytes) : bytes_(bytes) {
    const Unseen unseen;
    void* const made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memory_ = made == MAP_FAILED ? nullptr : static_cast<unsigned char*>(made);
  }
  ~FreshMemory() {
    if (memory_ != nullptr) munmap(memory_, bytes_);
  }
  FreshMemory(const FreshMemory&) = delete;
  FreshMemory& operator=(const FreshMemory&) = delete;
  unsigned char* data() const { return memory_; }

 private:
  std::size_t bytes_;
  unsigned char* memory_;
};

#else

inline constexpr bool kChecked = false;
inline void release(void*) {}
inline void acquire(void*) {}
inline void read(const void*, std::size_t) {}
inline void written(void*, std::size_t) {}
struct Unseen {
  Unseen() {}  // NOLINT(modernize-use-equals-default): else it would be unused where it stands
};
inline void* new_thread() { return nullptr; }
inline void ended_threads() {}
inline void end_thread(void*) {}
inline void* this_thread() { return nullptr; }
inline void go_on_as(void*) {}
inline void release_as(void*, void*) {}

class FreshMemory {
 public:
  explicit FreshMemory(std::size_t bytes) : memory_(new unsigned char[bytes]) {}
  unsigned char* data() const { return memory_.get(); }

 private:
  std::unique_ptr<unsigned char[]> memory_;
};

#endif

}  // namespace kvreplay::cuda::emulation::race
