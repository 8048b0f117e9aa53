#include "sim/cuda/emulation.hpp"

#include <cmath>
#include <csetjmp>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <ucontext.h>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace kvreplay::cuda::emulation {
namespace {

constexpr std::size_t kStack = 256 * 1024;
constexpr unsigned kWarp = 32;

/// A point that `expected` fibers must reach before any goes on.
struct Barrier {
  unsigned expected = 0, arrived = 0;
  std::uint64_t passed = 0;
};

struct Fiber {
  ucontext_t context{};
  jmp_buf place{};
  bool started = false;
  std::unique_ptr<unsigned char[]> stack;
  Thread thread;
  const Barrier* waits_at = nullptr;
  std::uint64_t waits_for = 0;
  bool ended = false;
  void* fake_stack = nullptr;

  bool ready() const { return !ended && (waits_at == nullptr || waits_at->passed >= waits_for); }
};

struct Warp {
  Barrier barrier;
  Lanes lanes{};
  const char* what = nullptr;
};

/// One block while it runs, on the thread that called run().
struct Block {
  const std::function<void()>* body = nullptr;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  Barrier all;
  ucontext_t scheduler{};
  jmp_buf scheduler_place{};
  Fiber* current = nullptr;
  std::exception_ptr failure;
  void* scheduler_fake_stack = nullptr;
  const void* scheduler_stack = nullptr;
  std::size_t scheduler_stack_size = 0;
};

thread_local Block* running = nullptr;

// swapcontext() asks the kernel for the signal mask each time; jumps do not. Address sanitizer knows no jumps
// between stacks, but can be told of every other change.
void leave_scheduler(Block& block, Fiber& fiber) {
  block.current = &fiber;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&block.scheduler_fake_stack, fiber.stack.get(), kStack);
  swapcontext(&block.scheduler, &fiber.context);
  __sanitizer_finish_switch_fiber(block.scheduler_fake_stack, nullptr, nullptr);
#else
  if (_setjmp(block.scheduler_place) != 0) return;
  if (fiber.started) _longjmp(fiber.place, 1);
  fiber.started = true;
  setcontext(&fiber.context);
#endif
}

void enter_fiber(Block& block, void* fake_stack) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, &block.scheduler_stack, &block.scheduler_stack_size);
#else
  (void)block;
  (void)fake_stack;
#endif
}

void back_to_scheduler(Block& block, Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(fiber.ended ? nullptr : &fiber.fake_stack, block.scheduler_stack,
                                 block.scheduler_stack_size);
  swapcontext(&fiber.context, &block.scheduler);
  enter_fiber(block, fiber.fake_stack);
#else
  if (_setjmp(fiber.place) == 0) _longjmp(block.scheduler_place, 1);
#endif
}

void fiber_main() {
  Block& block = *running;
  enter_fiber(block, nullptr);
  Fiber& fiber = *block.current;
  try {
    (*block.body)();
  } catch (...) {
    if (!block.failure) block.failure = std::current_exception();
  }
  fiber.ended = true;
  back_to_scheduler(block, fiber);
}

void prepare(Fiber& fiber) {
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStack;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, fiber_main, 0);
}

void arrive(Block& block, Barrier& barrier) {
  Fiber& fiber = *block.current;
  if (++barrier.arrived == barrier.expected) {
    barrier.arrived = 0;
    ++barrier.passed;
    return;
  }
  fiber.waits_at = &barrier;
  fiber.waits_for = barrier.passed + 1;
  back_to_scheduler(block, fiber);
  fiber.waits_at = nullptr;
}

void run_block(Block& block) {
  for (std::size_t left = block.fibers.size(); left > 0;) {
    bool moved = false;
    for (Fiber& fiber : block.fibers) {
      if (!fiber.ready()) continue;
      moved = true;
      leave_scheduler(block, fiber);
      if (fiber.ended) --left;
      if (block.failure) std::rethrow_exception(block.failure);
    }
    if (!moved)
      throw std::logic_error("a kernel hangs: " + std::to_string(left) + " of " +
                             std::to_string(block.fibers.size()) + " threads wait for others in vain");
  }
}

}  // namespace

const Thread& this_thread() { return running->current->thread; }

void run(Size3 grid, unsigned threads, std::size_t shared_bytes, const std::function<void()>& body) {
  if (threads == 0 || threads > 1024 || threads % kWarp != 0)
    throw std::logic_error("a block of " + std::to_string(threads) + " threads");
  std::vector<std::unique_ptr<unsigned char[]>> stacks(threads);
  for (auto& stack : stacks) stack.reset(new unsigned char[kStack]);
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        const std::unique_ptr<unsigned char[]> shared(new unsigned char[shared_bytes + 1]);
        std::memset(shared.get(), 0xff, shared_bytes);
        Block block;
        block.body = &body;
        block.fibers.resize(threads);
        block.warps.resize(threads / kWarp);
        block.all.expected = threads;
        for (Warp& warp : block.warps) warp.barrier.expected = kWarp;
        for (unsigned t = 0; t < threads; ++t) {
          Fiber& fiber = block.fibers[t];
          fiber.stack = std::move(stacks[t]);
          fiber.thread = {t, {x, y, z}, shared.get()};
          prepare(fiber);
        }
        Block* const outer = running;
        running = &block;
        try {
          run_block(block);
        } catch (...) {
          running = outer;
          throw;
        }
        running = outer;
        for (unsigned t = 0; t < threads; ++t) stacks[t] = std::move(block.fibers[t].stack);
      }
}

void sync_block() { arrive(*running, running->all); }

void warp_together(const char* what, LaneShare mine, const std::function<void(const Lanes&)>& carry_out) {
  Block& block = *running;
  const unsigned index = block.current->thread.index;
  Warp& warp = block.warps[index / kWarp];
  if (warp.barrier.arrived == 0)
    warp.what = what;
  else if (std::strcmp(warp.what, what) != 0)
    throw std::logic_error(std::string("lanes of one warp call ") + warp.what + " and " + what);
  warp.lanes[index % kWarp] = mine;
  if (warp.barrier.arrived + 1 == kWarp) carry_out(warp.lanes);
  arrive(block, warp.barrier);
}

float truncated(double x) {
  const auto nearest = static_cast<float>(x);
  return std::abs(static_cast<double>(nearest)) > std::abs(x) ? std::nextafter(nearest, 0.0F) : nearest;
}

}  // namespace kvreplay::cuda::emulation
