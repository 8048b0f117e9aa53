#pragma once

#include "sim/backend.hpp"
#include "sim/schedule.hpp"
#include "viewer/model/key.hpp"

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <type_traits>
#include <typeindex>
#include <utility>
#include <vector>

// Job queue and result cache for the panels' expensive computations. The key of a request contains all that
// its answer depends on. An answer is an immutable snapshot, computed in the background and kept while there
// is room. Panels repeat their requests in every frame; a request that is no longer asked is cancelled.

namespace kvreplay::viewer {

/// Priority of a job. Within one urgency, requests of the latest frame come first, in the order in which
/// the frame made them.
enum class Urgency {
  now,         ///< the user is waiting for the answer
  soon,        ///< the answer is in view
  background,  ///< requested, but not in view as a whole: all heads of a map
  idle,        ///< not requested by the user: findings
};

/// Backend for computations, possibly still starting; not valid: the CPU.
using ComingBackend = std::shared_future<std::shared_ptr<const Backend>>;

/// A job's view of itself.
class JobControl {
 public:
  /// Threads for this job alone; they throw Interrupted once it is cancelled.
  Workers& workers() { return workers_; }
  /// This job's threads with the queue's backend, in float32; waits for its start.
  Compute compute() { return {workers_, backend_.valid() ? *backend_.get() : cpu_backend()}; }
  bool cancelled() const { return workers_.stopping(); }
  /// Throws Interrupted where cancelled: for loops of the job's own.
  void check() const {
    if (cancelled()) throw Interrupted();
  }
  /// Reports the progress, 0..1.
  void progress(double share) { progress_.store(share, std::memory_order_relaxed); }

 private:
  friend class JobQueue;
  JobControl(int threads, ComingBackend backend) : workers_(threads), backend_(std::move(backend)) {}
  Workers workers_;
  ComingBackend backend_;
  std::atomic<double> progress_{0};
};

struct JobRequest {
  /// Everything the answer depends on, after the run the kind of request: Key(run.key(), "figures", ...).
  Key key = {};
  std::string title = {};  ///< for the list of jobs: "Token metrics, layer 3 head 1"
  Urgency urgency = Urgency::soon;
  /// Questions of one slot follow each other (a slider that moves): while the newest is open, the last answer
  /// given in the slot stands in for it. Empty: none.
  Key slot = {};
  /// Computed to its end even if nobody asks any more.
  bool lasting = false;
  /// Fills what is seen to be empty until then (a tile of a map, a line of a list): nothing older stands in
  /// its place.
  bool fills = false;
  /// For jobs that gain from all cores at once.
  bool all_cores = false;
};

/// Current state of an answer.
template <class R>
struct Answer {
  std::shared_ptr<const R> value;
  bool pending = false;  ///< the answer to this very request is still to come
  bool stale = false;    ///< `value` answers an older request of the slot
  std::string error;     ///< one line, where the job failed
  explicit operator bool() const { return value != nullptr; }
  const R* operator->() const { return value.get(); }
  const R& operator*() const { return *value; }
};

template <class R>
concept KnowsItsBytes = requires(const R& r) {
  { bytes_of(r) } -> std::convertible_to<std::size_t>;
};

/// The bytes of a part of an answer: of the numbers in a list or a matrix, of a text, of what lies behind a
/// pointer or in an optional, and of what has a bytes_of() of its own.
template <class Part>
std::size_t bytes_in(const Part& part) {
  if constexpr (KnowsItsBytes<Part>) {
    return bytes_of(part);
  } else if constexpr (requires { typename Part::Scalar; }) {
    return static_cast<std::size_t>(part.size()) * sizeof(typename Part::Scalar);
  } else if constexpr (requires { std::begin(part); }) {
    std::size_t bytes = 0;
    if constexpr (std::is_trivially_copyable_v<typename Part::value_type>)
      bytes = std::size(part) * sizeof(typename Part::value_type);
    else
      for (const auto& item : part) bytes += sizeof(item) + bytes_in(item);
    return bytes;
  } else if constexpr (requires { static_cast<bool>(part) ? *part : *part; }) {
    return part ? bytes_in(*part) : 0;
  } else {
    return sizeof(Part);
  }
}
/// The bytes of an answer with all of its parts that lie elsewhere.
template <class Whole, class... Parts>
std::size_t bytes_with(const Whole& whole, const Parts&... parts) {
  return (sizeof(whole) + ... + bytes_in(parts));
}

class JobQueue {
 public:
  struct Options {
    int threads = 0;                                 ///< 0: one a core
    std::size_t cache_bytes = std::size_t{1} << 30;  ///< of answers kept
    std::function<void()> on_answer;                 ///< called from a job's thread: wakes the window
    ComingBackend backend = {};
  };
  explicit JobQueue(Options options);
  ~JobQueue();
  JobQueue(const JobQueue&) = delete;
  JobQueue& operator=(const JobQueue&) = delete;

  /// The answer, or what is known until it is there. Never blocks for longer than a map look-up. An answer
  /// counts with bytes_of(R) where there is such a function, else with sizeof(R).
  template <class R, class F>
  requires std::same_as<std::invoke_result_t<F, JobControl&>, R> Answer<R> ask(const JobRequest& request,
                                                                               F compute) {
    const Untyped found = ask_untyped(request, typeid(R), [compute = std::move(compute)](JobControl& job) {
      auto result = std::make_shared<const R>(compute(job));
      std::size_t bytes = sizeof(R);
      if constexpr (KnowsItsBytes<R>) bytes = bytes_of(*result);
      return Result{std::move(result), bytes};
    });
    return {std::static_pointer_cast<const R>(found.value), found.pending, found.stale, found.error};
  }

  /// Called between frames: cancels the requests that the frame before did not ask.
  void next_frame();

  struct Job {
    Key key;
    std::string title;
    bool running = false;
    double progress = 0;
    double seconds = 0;  ///< since it started
    Urgency urgency = Urgency::soon;
  };
  /// Running jobs, then waiting ones in the order in which they will start.
  std::vector<Job> jobs() const;
  std::size_t open_jobs() const;
  struct Done {
    std::string title;
    double seconds = 0;
    std::string error;  ///< empty where it went well
    bool cancelled = false;
  };
  /// The last jobs that ended, newest first, at most 200.
  std::vector<Done> log() const;

  /// Number of jobs that have ended well.
  std::uint64_t answers() const;
  /// Counts of requests without an answer: still pending, and failed for good.
  struct Unanswered {
    std::uint64_t pending = 0, failed = 0;
    /// Pending requests in view (not in the background) for which an older answer may be shown meanwhile.
    std::uint64_t in_view = 0;
    std::string error = {};  ///< the last one
  };
  Unanswered unanswered() const;
  /// The newest failure since the last call; empty where there is none.
  std::string take_failure();

  void cancel(const Key& key);  ///< stays cancelled until forgotten: asking again says so
  /// Drops what is known of keys that begin with this one, running jobs among them; they may be asked anew.
  void forget(const Key& first);
  void forget_errors();

  std::size_t cached_bytes() const;
  std::size_t cache_limit() const;
  void set_cache_limit(std::size_t bytes);
  /// Grows with every answer or error: nothing to redraw while it stays.
  std::uint64_t version() const;
  /// Blocks until nothing runs or waits, for at most so long; false where it took longer. For tests and
  /// screenshots, which ask and wait in turn.
  bool wait_idle(std::chrono::milliseconds at_most);

 private:
  struct Result {
    std::shared_ptr<const void> value;
    std::size_t bytes = 0;
  };
  struct Untyped {
    std::shared_ptr<const void> value;
    bool pending = false, stale = false;
    std::string error;
  };
  Untyped ask_untyped(const JobRequest& request, std::type_index type,
                      std::function<Result(JobControl&)> compute);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvreplay::viewer
