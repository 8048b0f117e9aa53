#include "sim/cuda/emulation.hpp"

#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif
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
constexpr unsigned kWarp = 32;

/// Where a stack that does not run goes on.
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
};

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

// swapcontext() asks the kernel for the signal mask each time.
void change(Place& from, Place& to) {
  left_last = &from;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from.fake_stack, to.stack, to.stack_size);
#endif
#if defined(__x86_64__)
  kvreplay_change_stack(&from.at, to.at);
#else
  swapcontext(&from.at, &to.at);
#endif
  arrived(&from);
}

/// A point that `expected` fibers must reach before any goes on.
struct Barrier {
  unsigned expected = 0, arrived = 0;
  std::uint64_t passed = 0;
};

/// Runs one thread after the other, for as long as it lives.
struct Fiber {
  Place place;
  std::unique_ptr<unsigned char[]> memory{new unsigned char[kStack]};
  Thread thread;
  const Barrier* waits_at = nullptr;
  std::uint64_t waits_for = 0;
  bool ended = true;

  Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  bool ready() const { return !ended && (waits_at == nullptr || waits_at->passed >= waits_for); }
};
using Fibers = std::vector<std::unique_ptr<Fiber>>;

struct Warp {
  Barrier barrier;
  Lanes lanes{};
  const char* what = nullptr;
};

/// One block while it runs, on the thread that called run().
struct Block {
  const std::function<void()>* body = nullptr;
  Fibers& fibers;
  std::vector<Warp> warps;  ///< a copy: barriers start anew
  Barrier all;
  std::size_t left;
  Place caller{};
  Fiber* current = nullptr;
  std::exception_ptr failure{};
};

thread_local Block* running = nullptr;

/// Goes on with the next thread that is ready, or with run() where none is or one has failed.
void next(Block& block, Place& from) {
  Place* to = &block.caller;
  const std::size_t n = block.fibers.size();
  std::size_t index = block.current != nullptr ? block.current->thread.index : n - 1;
  for (std::size_t tried = 0; tried < n && !block.failure; ++tried) {
    if (++index == n) index = 0;
    Fiber& fiber = *block.fibers[index];
    if (!fiber.ready()) continue;
    block.current = &fiber;
    running_thread = &fiber.thread;
    to = &fiber.place;
    break;
  }
  change(from, *to);
}

[[noreturn]] void fiber_main() {
  arrived(nullptr);
  for (;;) {
    Block& block = *running;
    Fiber& fiber = *block.current;
    try {
      (*block.body)();
    } catch (...) {
      block.failure = std::current_exception();
    }
    fiber.ended = true;
    --block.left;
    next(block, fiber.place);
  }
}

Fiber::Fiber() {
  place.stack = memory.get();
  place.stack_size = kStack;
#if defined(__x86_64__)
  // What kvreplay_change_stack() pops: six registers, its return address; then that of fiber_main(), which is
  // entered as if called.
  void** top = reinterpret_cast<void**>(memory.get() + kStack);
  for (int below = 1; below <= 8; ++below) top[-below] = nullptr;
  top[-2] = reinterpret_cast<void*>(&fiber_main);
  place.at = top - 8;
#else
  getcontext(&place.at);
  place.at.uc_stack.ss_sp = memory.get();
  place.at.uc_stack.ss_size = kStack;
  place.at.uc_link = nullptr;
  makecontext(&place.at, fiber_main, 0);
#endif
}

/// The fibers that a call of run() uses: kept for the thread's next one, but for those stuck in a block that
/// failed.
class Borrowed {
 public:
  explicit Borrowed(std::size_t n) {
    fibers.swap(idle());
    if (fibers.size() > n) {
      idle().insert(idle().end(), std::make_move_iterator(fibers.begin() + static_cast<std::ptrdiff_t>(n)),
                    std::make_move_iterator(fibers.end()));
      fibers.resize(n);
    }
    while (fibers.size() < n) fibers.push_back(std::make_unique<Fiber>());
  }
  ~Borrowed() {
    for (std::unique_ptr<Fiber>& fiber : fibers)
      if (fiber->ended) idle().push_back(std::move(fiber));
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

  Fibers fibers;

 private:
  static Fibers& idle() {
    static thread_local Fibers list;
    return list;
  }
};

void run_block(Block& block) {
  Block* const outer = running;
  const Thread* const outer_thread = running_thread;
  running = &block;
  next(block, block.caller);
  running = outer;
  running_thread = outer_thread;
  if (block.failure) std::rethrow_exception(block.failure);
  if (block.left > 0)
    throw std::logic_error("a kernel hangs: " + std::to_string(block.left) + " of " +
                           std::to_string(block.fibers.size()) + " threads wait for others in vain");
}

/// Until every one of `expected` is there.
void arrive(Block& block, Barrier& barrier) {
  if (++barrier.arrived == barrier.expected) {
    barrier.arrived = 0;
    ++barrier.passed;
    return;
  }
  Fiber& fiber = *block.current;
  fiber.waits_at = &barrier;
  fiber.waits_for = barrier.passed + 1;
  next(block, fiber.place);
  fiber.waits_at = nullptr;
}

}  // namespace

void run(Size3 grid, unsigned threads, std::size_t shared_bytes, const std::function<void()>& body) {
  if (threads == 0 || threads > 1024 || threads % kWarp != 0)
    throw std::logic_error("a block of " + std::to_string(threads) + " threads");
  Borrowed borrowed(threads);
  const std::unique_ptr<unsigned char[]> shared(new unsigned char[shared_bytes + 1]);
  std::vector<Warp> warps(threads / kWarp);
  for (Warp& warp : warps) warp.barrier.expected = kWarp;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        std::memset(shared.get(), 0xff, shared_bytes);
        for (unsigned t = 0; t < threads; ++t) {
          Fiber& fiber = *borrowed.fibers[t];
          fiber.thread = {t, {x, y, z}, shared.get()};
          fiber.waits_at = nullptr;
          fiber.ended = false;
        }
        Block block{&body, borrowed.fibers, warps, {threads}, threads};
        run_block(block);
      }
}

void sync_block() { arrive(*running, running->all); }

void warp_together(const char* what, LaneShare mine, void (*carry_out)(const Lanes&)) {
  Block& block = *running;
  const unsigned index = this_thread().index;
  Warp& warp = block.warps[index / kWarp];
  if (warp.barrier.arrived == 0)
    warp.what = what;
  else if (warp.what != what && std::strcmp(warp.what, what) != 0)
    throw std::logic_error(std::string("lanes of one warp call ") + warp.what + " and " + what);
  warp.lanes[index % kWarp] = mine;
  if (warp.barrier.arrived + 1 == kWarp) carry_out(warp.lanes);
  arrive(block, warp.barrier);
}

}  // namespace kvreplay::cuda::emulation
