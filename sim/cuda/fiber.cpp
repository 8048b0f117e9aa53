#include "sim/cuda/fiber.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__)
// Pushes what a callee must preserve, stores the stack pointer at *from, and goes on where `to` was stored
// so.
extern "C" void kvreplay_change_stack(void** from, void* to);
asm(R"(
  .pushsection .text
  .globl kvreplay_change_stack
  .hidden kvreplay_change_stack
  .type kvreplay_change_stack, @function
kvreplay_change_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size kvreplay_change_stack, . - kvreplay_change_stack
  .popsection
)");
#endif

namespace kvreplay::cuda::emulation {
namespace {

constexpr std::size_t kStack = 256 * 1024;

thread_local Place* left_last = nullptr;

/// After every arrival on a stack: whoever was left may be gone back to.
void arrived(Place* here) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(here != nullptr ? here->fake_stack : nullptr, &left_last->stack,
                                  &left_last->stack_size);
#else
  (void)here;
#endif
}

}  // namespace

// swapcontext() asks the kernel for the signal mask each time.
void change(Place& from, Place& to) {
  left_last = &from;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from.fake_stack, to.stack, to.stack_size);
#endif
  race::go_on_as(to.seen_as);
#if defined(__x86_64__)
  kvreplay_change_stack(&from.at, to.at);
#else
  swapcontext(&from.at, &to.at);
#endif
  arrived(&from);
}

void Fiber::began() { arrived(nullptr); }

Fiber::Fiber(void (*main)()) : memory_(kStack) {
  place.stack = memory_.data();
  place.stack_size = kStack;
#if defined(__x86_64__)
  // What kvreplay_change_stack() pops: six registers, its return address; then that of main, which is entered
  // as if called.
  void** top = reinterpret_cast<void**>(memory_.data() + kStack);
  for (int below = 1; below <= 8; ++below) top[-below] = nullptr;
  top[-2] = reinterpret_cast<void*>(main);
  place.at = top - 8;
#else
  getcontext(&place.at);
  place.at.uc_stack.ss_sp = memory_.data();
  place.at.uc_stack.ss_size = kStack;
  place.at.uc_link = nullptr;
  makecontext(&place.at, main, 0);
#endif
}

}  // namespace kvreplay::cuda::emulation
