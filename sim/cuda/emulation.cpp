#include "sim/cuda/emulation.hpp"

#include "sim/cuda/runtime.hpp"
#include "sim/cuda/runtime_emulated.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif
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
#endif

// Thread sanitizer is told of an emulated kernel, so that it finds the races that the kernel would have on a
// device: device threads are threads to it, ordered by nothing but their order there. All of this is empty
// in a build without thread sanitizer. This file is compiled without it: the emulation's own accesses are no
// device's.

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

// Stacks that one thread of the processor changes between.

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
  /// The thread as which sanitizer sees what runs on it (namespace race).
  void* seen_as = nullptr;
};

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

// swapcontext() asks the kernel for the signal mask each time.
/// Leaves the running stack at `from` and goes on at `to`; returns once somebody goes on at `from`.
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
  // Stack that kvreplay_change_stack() pops: six registers and its return address, which is main. The null
  // above is the return address of main, which is entered as if called.
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

// The device.

constexpr unsigned kWarp = 32;

std::atomic<std::int64_t> all_runs{0};

/// A point that `expected` threads must reach before any goes on.
struct Barrier {
  unsigned expected = 0, arrived = 0;
  std::uint64_t passed = 0;
  /// Marks that order memory: a thread that passes sees everything that the others did before. Two marks
  /// alternate, since some threads may still be on their way from one meeting when others come to the next.
  /// Null: no order.
  unsigned char* marks = nullptr;
  unsigned char* mark() const { return marks + 8 * (passed % 2); }
};

/// A copy that the device makes while its thread goes on.
struct LateCopy {
  void* to;
  const void* from;  ///< null: zeros
  unsigned batch;
};

/// True if blocks are not ordered among themselves, so that races between them are found. Each device thread
/// is then one of its own to thread sanitizer, with its own stack, which takes 20 times as long.
bool blocks_apart() {
  static const bool apart = race::kChecked && std::getenv("KVREPLAY_RACES_BETWEEN_BLOCKS") != nullptr;
  return apart;
}

/// Runs one device thread after the other.
struct Runner {
  std::optional<Fiber> fiber;
  Thread thread;
  const Barrier* waits_at = nullptr;
  std::uint64_t waits_for = 0;
  bool ended = true;
  std::vector<LateCopy> copies;
  unsigned batch = 0;  ///< that copies belong to now

  Runner() = default;
  ~Runner() { end(); }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;
  bool ready() const { return !ended && (waits_at == nullptr || waits_at->passed >= waits_for); }

  void begin(const Thread& as);

 private:
  void end() {
    if (fiber && fiber->place.seen_as != nullptr) race::end_thread(fiber->place.seen_as);
  }
};
using Runners = std::vector<std::unique_ptr<Runner>>;

struct Warp {
  Barrier barrier;
  Lanes lanes{};
  const char* what = nullptr;
};

/// In which order threads and blocks get their turns: theirs, or where KVREPLAY_EMULATION_SEED is set one
/// that follows from it.
class Order {
 public:
  Order() {
    if (const char* seed = std::getenv("KVREPLAY_EMULATION_SEED"); seed != nullptr && *seed != 0)
      random_.emplace(static_cast<unsigned>(std::strtoul(seed, nullptr, 10)));
  }
  /// Where to look for the next one of n, after `last`.
  std::size_t next(std::size_t last, std::size_t n) { return random_ ? (*random_)() % n : (last + 1) % n; }
  void mix(std::vector<Size3>& blocks) {
    if (random_) std::shuffle(blocks.begin(), blocks.end(), *random_);
  }

 private:
  std::optional<std::minstd_rand> random_;
};

/// One block while it runs, on the thread that called run().
struct Block {
  const std::function<void()>* body = nullptr;
  Runners& runners;
  Order& order;
  std::vector<Warp> warps;
  Barrier all;
  std::size_t left;
  void* launched;  ///< mark of all that came before the kernel
  void* done;      ///< and of all that it did
  Place caller{};
  Runner* current = nullptr;
  std::exception_ptr failure{};
};

thread_local Block* running = nullptr;

/// Goes on with the next thread that is ready, or with run() where none is or one has failed.
void next(Block& block, Place& from) {
  Place* to = &block.caller;
  const std::size_t n = block.runners.size();
  std::size_t index = block.order.next(block.current != nullptr ? block.current->thread.index : n - 1, n);
  for (std::size_t tried = 0; tried < n && !block.failure; ++tried, index = (index + 1) % n) {
    Runner& runner = *block.runners[index];
    if (!runner.ready()) continue;
    block.current = &runner;
    running_thread = &runner.thread;
    to = &runner.fiber->place;
    break;
  }
  change(from, *to);
}

[[noreturn]] void runner_main() {
  Fiber::began();
  for (;;) {
    Block& block = *running;
    Runner& runner = *block.current;
    race::acquire(block.launched);
    try {
      (*block.body)();
      if (!runner.copies.empty()) throw std::logic_error("a thread ends while its copies are on their way");
    } catch (...) {
      block.failure = std::current_exception();
    }
    race::release(block.done);
    runner.ended = true;
    --block.left;
    next(block, runner.fiber->place);
  }
}

void Runner::begin(const Thread& as) {
  if (!fiber || blocks_apart()) {
    end();
    fiber.emplace(runner_main);
    fiber->place.seen_as = race::new_thread();
  }
  thread = as;
  waits_at = nullptr;
  ended = false;
  copies.clear();
  batch = 0;
}

/// Memory of a call of run(): kept for the thread's next one, but for those stuck in a block that failed.
class Borrowed {
 public:
  explicit Borrowed(std::size_t n) {
    runners.swap(idle());
    if (runners.size() > n) {
      idle().insert(idle().end(), std::make_move_iterator(runners.begin() + static_cast<std::ptrdiff_t>(n)),
                    std::make_move_iterator(runners.end()));
      runners.resize(n);
    }
    while (runners.size() < n) runners.push_back(std::make_unique<Runner>());
  }
  ~Borrowed() {
    for (std::unique_ptr<Runner>& runner : runners)
      if (runner->ended) idle().push_back(std::move(runner));
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

  Runners runners;

 private:
  static Runners& idle() {
    race::ended_threads();
    static thread_local Runners list;
    return list;
  }
};

void run_block(Block& block) {
  Block* const outer = running;
  const Thread* const outer_thread = running_thread;
  running = &block;
  block.caller.seen_as = race::this_thread();
  next(block, block.caller);
  running = outer;
  running_thread = outer_thread;
  if (block.failure) std::rethrow_exception(block.failure);
  if (block.left > 0)
    throw std::logic_error("a kernel hangs: " + std::to_string(block.left) + " of " +
                           std::to_string(block.runners.size()) + " threads wait for others in vain");
}

/// Until every one of `expected` is there.
void arrive(Block& block, Barrier& barrier) {
  unsigned char* const mark = barrier.marks != nullptr ? barrier.mark() : nullptr;
  if (mark != nullptr) race::release(mark);
  if (++barrier.arrived == barrier.expected) {
    barrier.arrived = 0;
    ++barrier.passed;
  } else {
    Runner& runner = *block.current;
    runner.waits_at = &barrier;
    runner.waits_for = barrier.passed + 1;
    next(block, runner.fiber->place);
    runner.waits_at = nullptr;
  }
  if (mark != nullptr) race::acquire(mark);
}

/// As the device would refuse it.
void check_launch(Size3 grid, unsigned threads, std::size_t shared_bytes) {
  constexpr unsigned kMostX = 0x7fffffff, kMost = 65535;
  const auto refuse = [](const std::string& what) { throw std::logic_error("a kernel is launched " + what); };
  if (threads == 0 || threads > 1024 || threads % kWarp != 0)
    refuse("in blocks of " + std::to_string(threads) + " threads");
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > kMostX || grid.y > kMost || grid.z > kMost)
    refuse("on a grid of " + std::to_string(grid.x) + " x " + std::to_string(grid.y) + " x " +
           std::to_string(grid.z) + " blocks");
  if (shared_bytes > shared_memory_limit())
    refuse("with " + std::to_string(shared_bytes) + " bytes of shared memory, of " +
           std::to_string(shared_memory_limit()));
}

std::vector<Size3> blocks_of(Size3 grid) {
  std::vector<Size3> blocks;
  blocks.reserve(std::size_t{grid.x} * grid.y * grid.z);
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) blocks.push_back({x, y, z});
  return blocks;
}

}  // namespace

std::int64_t runs() { return all_runs; }

void run(Size3 grid, unsigned threads, std::size_t shared_bytes, const std::function<void()>& body) {
  check_launch(grid, threads, shared_bytes);
  detail::emulated_call(DeviceCall::launch);
  ++all_runs;
  static thread_local Order order;
  std::vector<Size3> blocks = blocks_of(grid);
  order.mix(blocks);
  Borrowed borrowed(threads);
  unsigned char launched = 0, done = 0;
  race::release(&launched);
  for (const Size3& place : blocks) {
    // Behind what the block sees, the marks of its barrier.
    const std::size_t marks = (shared_bytes + 15) / 16 * 16;
    const race::FreshMemory shared(marks + 16);
    {
      const race::Unseen unseen;
      std::memset(shared.data(), 0xff, shared_bytes);
    }
    Block block{&body, borrowed.runners, order,     std::vector<Warp>(threads / kWarp),
                {},    threads,          &launched, &done};
    for (Warp& warp : block.warps) warp.barrier.expected = kWarp;
    block.all.expected = threads;
    block.all.marks = shared.data() + marks;
    for (unsigned t = 0; t < threads; ++t) borrowed.runners[t]->begin({t, place, shared.data()});
    try {
      run_block(block);
    } catch (...) {
      for (const std::unique_ptr<Runner>& runner : borrowed.runners)
        if (!runner->ended) race::release_as(runner->fiber->place.seen_as, &done);
      race::acquire(&done);
      throw;
    }
    if (blocks_apart()) continue;
    race::acquire(&done);
    race::release(&launched);
  }
  race::acquire(&done);
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
  if (warp.barrier.arrived + 1 == kWarp) {
    const race::Unseen unseen;
    carry_out(warp.lanes);
  }
  arrive(block, warp.barrier);
}

void copy_late(void* to, const void* from) {
  constexpr std::uintptr_t kAligned = 16;
  if (reinterpret_cast<std::uintptr_t>(to) % kAligned != 0 ||
      reinterpret_cast<std::uintptr_t>(from) % kAligned != 0)
    throw std::logic_error("a copy of 16 bytes from or to no multiple of 16");
  Runner& runner = *running->current;
  race::written(to, kLateCopy);
  {
    const race::Unseen unseen;
    std::memset(to, 0xff, kLateCopy);
  }
  runner.copies.push_back({to, from, runner.batch});
}

void end_late_batch() { ++running->current->batch; }

void wait_for_late(unsigned batches_left) {
  Runner& runner = *running->current;
  std::erase_if(runner.copies, [&](const LateCopy& one) {
    if (one.batch + batches_left >= runner.batch) return false;
    if (one.from != nullptr) race::read(one.from, kLateCopy);
    race::written(one.to, kLateCopy);
    const race::Unseen unseen;
    if (one.from != nullptr)
      std::memcpy(one.to, one.from, kLateCopy);
    else
      std::memset(one.to, 0, kLateCopy);
    return true;
  });
}

}  // namespace kvreplay::cuda::emulation
