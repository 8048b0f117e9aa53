#pragma once

#include "analysis/options/option.hpp"
#include "analysis/run/compute_choice.hpp"
#include "analysis/run/stage.hpp"
#include "data/error.hpp"
#include "data/npy_array.hpp"
#include "sim/compute.hpp"
#include "sim/head_group.hpp"
#include "sim/schedule.hpp"
#include "sim/simd/panel.hpp"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <memory>
#include <nanobind/nanobind.h>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// Execution of calls from Python: without the interpreter's lock, on threads that wait for the next call,
// interruptible by Ctrl-C.

namespace kvreplay::python {

namespace nb = nanobind;

/// Sets a command's options from Python's keywords, in which '_' stands for '-': text, numbers, booleans for
/// flags, a sequence or a text with commas for a list; None counts as not given. Errors are those of the
/// command line, but for the dashes. Throws OptionError.
void read_keywords(const BoundOptions& options, const nb::dict& keywords);

/// The `options` for which keep(const OptionFacts*) is true.
template <class Keep>
BoundOptions those_of(BoundOptions options, const Keep& keep) {
  std::erase_if(options, [&](const BoundOption& option) { return !keep(option.facts); });
  return options;
}

/// The options of `one`, then those of `other`.
BoundOptions joined(BoundOptions one, const BoundOptions& other);

/// The options, with the description of `facts` replaced by that of `own`: equal names, but with the values
/// that a call takes.
BoundOptions described_as(BoundOptions options, const OptionFacts& facts, const OptionFacts& own);

/// Throws OptionError unless `found`, the length of a list of which a call takes one value, is 1.
void require_one(const OptionFacts& option, std::size_t found);
/// As above, for budgets; `keep` is an alternative spelling.
template <class Budget>
void require_one_budget(const OptionFacts& keep, const std::vector<Budget>& budgets) {
  if (budgets.empty()) throw OptionError(keep, "one", "none (keep, sigma or budget says how much stays)");
  const bool named = !budgets.empty() && budgets.front().asked_by != nullptr;
  require_one(named ? *budgets.front().asked_by : keep, budgets.size());
}

/// (name, "meaning [default]") of each option of a call, for its keywords and its docstring.
nb::list described(const BoundOptions& options);

/// The keywords of one kind of call. Binding options takes longer than reading them, so they are bound once,
/// and reset for every call.
template <class Options>
class Keywords {
 public:
  using Bind = BoundOptions (*)(Options&);
  constexpr explicit Keywords(Bind bind) : bind_(bind) {}

  /// Options from the keywords, on top of first(Options&). Needs Python's lock. Converting a value to text
  /// may run Python code that calls this function again.
  template <class First>
  Options read(const nb::dict& keywords, const First& first) {
    std::unique_ptr<Bound> bound = idle_ ? std::move(idle_) : std::make_unique<Bound>(bind_);
    first(bound->options);
    read_keywords(bound->all, keywords);
    Options said = std::exchange(bound->options, bound->initial);
    idle_ = std::move(bound);
    return said;
  }
  Options read(const nb::dict& keywords) {
    return read(keywords, [](Options&) {});
  }
  nb::list described() const { return python::described(Bound(bind_).all); }

 private:
  struct Bound {
    explicit Bound(Bind bind) : all(bind(options)), initial(options) {}
    Options options;
    BoundOptions all;
    Options initial;
  };
  Bind bind_;
  std::unique_ptr<Bound> idle_;
};

inline nb::list texts_of(const std::vector<OptionText>& notes) {
  nb::list texts;
  for (const OptionText& note : notes) texts.append(note.plain().c_str());
  return texts;
}

/// Reasons, by the name of the result that is left out.
inline nb::dict texts_of(const std::vector<LeftOut>& left_out) {
  nb::dict texts;
  for (const LeftOut& one : left_out) texts[one.what.c_str()] = one.why.c_str();
  return texts;
}

/// Options that every call takes, besides its command's.
struct CallOptions {
  BackendChoice backend = BackendChoice::automatic;
  Precision precision = Precision::f32;
  std::optional<Index> threads;  ///< unset: default_threads()
};
BoundOptions bound(CallOptions& options);

/// Options of a command and of the call.
template <class Options>
struct Asked {
  Options of = {};
  CallOptions call = {};
};

/// Threads of a call that names none; 0: one per core that this process may use.
int default_threads();
void set_default_threads(int threads);

/// Threads that no other call uses, as long as the object lives.
class Lease {
 public:
  explicit Lease(int threads);
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  Workers& workers() const { return *workers_; }

 private:
  int threads_;
  std::unique_ptr<Workers> workers_;
};

/// While it lives, SIGINT stops the workers of a call from the main thread, besides what it does to Python.
class StopOnInterrupt {
 public:
  explicit StopOnInterrupt(Workers& workers);
  ~StopOnInterrupt();
  StopOnInterrupt(const StopOnInterrupt&) = delete;
  StopOnInterrupt& operator=(const StopOnInterrupt&) = delete;

 private:
  bool active_ = false;
  struct sigaction before_ = {};
};

/// As choose_compute(), which is asked once for each choice.
ChosenCompute chosen_compute(const CallOptions& options);

/// Raises what Python makes of a Ctrl-C.
[[noreturn]] void raise_interrupt();

/// work(const Compute&), which must not touch Python.
template <class Work>
auto computed(const CallOptions& options, const Work& work) {
  const ChosenCompute chosen = chosen_compute(options);
  try {
    const nb::gil_scoped_release unlocked;
    const Lease lease(options.threads ? static_cast<int>(*options.threads) : default_threads());
    const StopOnInterrupt stop(lease.workers());
    return work(chosen.on(lease.workers()));
  } catch (const Interrupted&) {
    raise_interrupt();
  }
}

/// A head group of `parts` of layer 0; where its keys lie as they are used, all threads look at them.
template <class T>
HeadGroup<T> loaded_head(const Dump& dump, Index g, const HeadParts& parts, Workers& workers) {
  HeadParts unchecked = parts;
  unchecked.checked_keys = false;
  HeadGroup<T> group = load_head_group<T>(dump, 0, g, unchecked);
  if (!parts.checked_keys || !group.k.borrowed()) return group;
  constexpr Index kPerItem = Index{1} << 16;
  const Index n = group.k.size();
  std::atomic<bool> bad = false;
  workers.parallel_for(div_up(n, kPerItem), [&](Index item) {
    const Index first = item * kPerItem;
    if (first_not_finite(group.k.data() + first, std::min(kPerItem, n - first))) bad = true;
  });
  if (bad) load_head_group<T>(dump, 0, g, parts);  // says which
  return group;
}

/// work() on head groups of `parts`. Where their keys went unlooked at and it finds what is not finite, a key
/// may be why: the message then says which.
template <class T, class Work>
auto on_parts(const Dump& dump, const HeadParts& parts, const Work& work) {
  try {
    return work();
  } catch (const InputError&) {
    const HeadParts keys{.first_row = dump.shape().T, .values = false, .others = false};
    for (Index g = 0; !parts.checked_keys && g < dump.shape().n_kv; ++g) load_head_group<T>(dump, 0, g, keys);
    throw;
  }
}

/// Runs body(kv_head) for the KV heads of a layer: side by side while they are small.
template <class Body>
void for_each_head(const Dump& dump, Workers& workers, const Body& body) {
  const DumpShape& shape = dump.shape();
  if (shape.n_kv > 1 && head_group_bytes(dump, sizeof(double)) <= kLargeHeadGroup)
    return workers.parallel_for(shape.n_kv, body);
  for (Index g = 0; g < shape.n_kv; ++g) body(g);
}

}  // namespace kvreplay::python
