#include "analysis/python/query.hpp"
#include "data/error.hpp"
#include "data/npy_array.hpp"
#include "sim/simd/panel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <map>
#include <mutex>
#include <nanobind/stl/string.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace kvreplay::python {

namespace {

std::string keyword_of(const OptionFacts& facts) {
  std::string name(facts.name);
  std::ranges::replace(name, '-', '_');
  return name;
}
bool is_keyword_of(const OptionFacts& facts, std::string_view word) {
  return std::ranges::equal(facts.name, word,
                            [](char a, char b) { return a == b || (a == '-' && b == '_'); });
}

/// True for an option that a call has to give: a list without default, of which a call takes one value.
bool is_wanted(const BoundOption& option) { return option.list && option.initial.empty(); }

std::string word_of(nb::handle value) { return nb::cast<std::string>(nb::str(value)); }

std::vector<std::string> words_of(const BoundOption& option, nb::handle value) {
  if (nb::isinstance<nb::str>(value))
    return option.list ? items_of(word_of(value), option.of_files) : std::vector{word_of(value)};
  if (!nb::isinstance<nb::sequence>(value)) return {word_of(value)};
  std::vector<std::string> words;
  for (nb::handle item : value) words.push_back(word_of(item));
  if (!option.list && words.size() != 1)
    throw OptionError(*option.facts, "one", fmt::format("{} of them", words.size()));
  return words;
}

void read_flag(const BoundOption& option, nb::handle value) {
  if (!nb::isinstance<nb::bool_>(value))
    throw OptionError(*option.facts, "True or False", fmt::format("'{}'", word_of(value)));
  if (nb::cast<bool>(value)) option.read({});
}

void read(const BoundOption& option, nb::handle value) {
  if (option.flag()) return read_flag(option, value);
  const std::vector<std::string> words = words_of(option, value);
  if (option.complaint)
    for (const std::string& word : words)
      if (const std::string complaint = option.complaint(word); !complaint.empty())
        throw OptionError(option_text("{}: {}", *option.facts, complaint));
  option.read(words);
}

}  // namespace

void read_keywords(const BoundOptions& options, const nb::dict& keywords) {
  std::vector<std::pair<const BoundOption*, nb::handle>> given;
  for (const auto& [key, value] : keywords) {
    if (value.is_none()) continue;
    const std::string name = word_of(key);
    const auto found = std::ranges::find_if(
        options, [&](const BoundOption& one) { return is_keyword_of(*one.facts, name); });
    if (found == options.end()) {
      std::vector<std::string> names;
      for (const BoundOption& one : options) names.push_back(keyword_of(*one.facts));
      throw OptionError(option_text("unknown option '{}'{}", name, alternatives(name, names)));
    }
    given.emplace_back(&*found, value);
  }
  const auto is_given = [&](const OptionFacts& facts) {
    return std::ranges::any_of(given, [&](const auto& one) { return one.first->facts == &facts; });
  };
  for (const auto& [option, value] : given) {
    for (const OptionFacts* other : option->excludes)
      if (is_given(*other)) throw OptionError(option_text("{} excludes {}", *option->facts, *other));
    if (option->needs != nullptr && !is_given(*option->needs))
      throw OptionError(option_text("{} requires {}", *option->facts, *option->needs));
  }
  for (const bool last : {false, true})
    for (const auto& [option, value] : given)
      if (option->last == last) read(*option, value);
}

BoundOptions joined(BoundOptions one, const BoundOptions& other) {
  one.insert(one.end(), other.begin(), other.end());
  return one;
}

BoundOptions without(BoundOptions options, const OptionFacts& one) {
  std::erase_if(options, [&](const BoundOption& option) { return option.facts == &one; });
  return options;
}

void require_one(const OptionFacts& option, std::size_t found) {
  if (found != 1) throw OptionError(option, "one", found == 0 ? "none" : fmt::format("{}", found));
}

nb::list described(const BoundOptions& options) {
  nb::list found;
  for (const BoundOption& option : options) {
    const bool from_facts = !option.facts->otherwise.empty() && !is_wanted(option);
    const std::string otherwise(from_facts ? option.facts->otherwise : std::string_view(option.initial));
    found.append(nb::make_tuple(keyword_of(*option.facts), std::string(option.facts->meaning),
                                option.words + (otherwise.empty() ? "" : fmt::format(" [{}]", otherwise))));
  }
  return found;
}

namespace {

/// Threads between calls. Never destroyed: they end with the process, and a fork leaves them behind.
struct Pool {
  std::mutex mutex;
  std::map<int, std::vector<std::unique_ptr<Workers>>> idle;  // by the number asked for
};

std::atomic<Pool*> g_pool{nullptr};

Pool& pool() {
  static const bool once = [] {
    g_pool = new Pool;
    pthread_atfork(nullptr, nullptr, [] { g_pool = new Pool; });
    return true;
  }();
  static_cast<void>(once);
  return *g_pool.load();
}

/// Threads that no other call uses, as long as the object lives.
class Lease {
 public:
  explicit Lease(int threads) : threads_(threads) {
    {
      Pool& from = pool();
      const std::lock_guard lock(from.mutex);
      auto& idle = from.idle[threads];
      if (!idle.empty()) {
        workers_ = std::move(idle.back());
        idle.pop_back();
      }
    }
    // One call follows another within a notebook's or a press's loop.
    if (!workers_) workers_ = std::make_unique<Workers>(threads, std::chrono::microseconds(100));
  }
  ~Lease() {
    if (workers_->stopping()) return;
    Pool& to = pool();
    const std::lock_guard lock(to.mutex);
    to.idle[threads_].push_back(std::move(workers_));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  Workers& workers() const { return *workers_; }

 private:
  int threads_;
  std::unique_ptr<Workers> workers_;
};

std::atomic<int> g_threads{0};
std::atomic<Workers*> g_stopped_by_interrupt{nullptr};
struct sigaction g_handler = {};  // Python's; set before the pointer above is

extern "C" void on_interrupt(int signal) {
  if (Workers* workers = g_stopped_by_interrupt.load()) workers->stop();
  g_handler.sa_handler(signal);
}

/// While it lives, SIGINT stops the workers of a call from the main thread, besides what it does to Python.
class StopOnInterrupt {
 public:
  explicit StopOnInterrupt(Workers& workers) {
    if (::syscall(SYS_gettid) != ::getpid()) return;
    sigaction(SIGINT, nullptr, &before_);
    active_ = (before_.sa_flags & SA_SIGINFO) == 0 && before_.sa_handler != SIG_DFL &&
              before_.sa_handler != SIG_IGN && before_.sa_handler != on_interrupt;
    if (!active_) return;
    g_handler = before_;
    g_stopped_by_interrupt = &workers;
    struct sigaction action = before_;
    action.sa_handler = on_interrupt;
    sigaction(SIGINT, &action, nullptr);
  }
  ~StopOnInterrupt() {
    if (!active_) return;
    sigaction(SIGINT, &before_, nullptr);
    g_stopped_by_interrupt = nullptr;
  }
  StopOnInterrupt(const StopOnInterrupt&) = delete;
  StopOnInterrupt& operator=(const StopOnInterrupt&) = delete;

 private:
  bool active_ = false;
  struct sigaction before_ = {};
};

}  // namespace

BoundOptions bound(CallOptions& options) {
  using namespace compute_option;
  return {bind_option(backend, options.backend), bind_option(precision, options.precision),
          bind_option(threads, options.threads)};
}

void set_default_threads(int threads) { g_threads = threads; }
int default_thread_count() { return Lease(g_threads).workers().threads(); }

namespace {

/// As choose_compute(), which is called once for each choice.
ChosenCompute chosen_compute(const CallOptions& options) {
  static std::map<std::pair<BackendChoice, Precision>, ChosenCompute> chosen;  // behind Python's lock
  const std::pair key(options.backend, options.precision);
  auto found = chosen.find(key);
  if (found == chosen.end())
    found = chosen.emplace(key, choose_compute({.backend = options.backend, .precision = options.precision}))
                .first;
  return found->second;
}

}  // namespace

void run_call(const CallOptions& options, const std::function<void(const Compute&)>& work) {
  const ChosenCompute chosen = chosen_compute(options);
  try {
    const nb::gil_scoped_release unlocked;
    const Lease lease(static_cast<int>(options.threads.value_or(g_threads)));
    const StopOnInterrupt stop(lease.workers());
    work(chosen.on(lease.workers()));
  } catch (const Interrupted&) {
    if (PyErr_CheckSignals() == 0) PyErr_SetNone(PyExc_KeyboardInterrupt);
    throw nb::python_error();
  }
}

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
  if (bad) load_head_group<T>(dump, 0, g, parts);  // throws, with its place
  return group;
}
template HeadGroup<float> loaded_head(const Dump&, Index, const HeadParts&, Workers&);
template HeadGroup<double> loaded_head(const Dump&, Index, const HeadParts&, Workers&);

template <class T>
void on_parts(const Dump& dump, const HeadParts& parts, const std::function<void()>& work) {
  try {
    work();
  } catch (const InputError&) {
    const HeadParts keys{.first_row = dump.shape().T, .values = false, .others = false};
    for (Index g = 0; !parts.checked_keys && g < dump.shape().n_kv; ++g) load_head_group<T>(dump, 0, g, keys);
    throw;
  }
}
template void on_parts<float>(const Dump&, const HeadParts&, const std::function<void()>&);
template void on_parts<double>(const Dump&, const HeadParts&, const std::function<void()>&);

void for_each_head(const Dump& dump, Workers& workers, const std::function<void(Index)>& body) {
  const Index n_kv = dump.shape().n_kv;
  if (n_kv > 1 && head_group_bytes(dump, sizeof(double)) <= kLargeHeadGroup)
    return workers.parallel_for(n_kv, body);
  for (Index g = 0; g < n_kv; ++g) body(g);
}

}  // namespace kvreplay::python
