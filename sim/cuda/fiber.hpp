#pragma once

#include "sim/cuda/race_check.hpp"

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

// Stacks that one thread of the processor changes between.

namespace kvreplay::cuda::emulation {

/// Where a stack goes on that does not run.
struct Place {
#if defined(__x86_64__)
  void* at = nullptr;
#else
  ucontext_t at{};
#endif
  // For address sanitizer.
  void* fake_stack = nullptr;
  const void* stack = nullptr;
  std::size_t stack_size = 0;
  /// Of race_check.hpp: as whose thread sanitizer sees what runs on it.
  void* seen_as = nullptr;
};

/// Leaves the running stack at `from` and goes on at `to`; returns once somebody goes on at `from`.
void change(Place& from, Place& to);

/// A stack of its own, on which `main` begins when it is first changed to. `main` never returns and calls
/// began() first.
class Fiber {
 public:
  explicit Fiber(void (*main)());
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  static void began();

  Place place;

 private:
  race::FreshMemory memory_;
};

}  // namespace kvreplay::cuda::emulation
