#pragma once

#include "analysis/eviction/eviction_options.hpp"
#include "analysis/options/option.hpp"
#include "analysis/run/compute_choice.hpp"
#include "analysis/run/stage.hpp"
#include "data/dump.hpp"
#include "sim/compute.hpp"
#include "sim/head_group.hpp"
#include "sim/schedule.hpp"

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::python {

namespace nb = nanobind;

// Arrays.

/// Arrays in C order, as kvreplay._arrays.numbers() and booleans() give them.
using Numbers = nb::ndarray<const double, nb::c_contig, nb::device::cpu>;
using Booleans = nb::ndarray<const bool, nb::c_contig, nb::device::cpu>;

/// A NumPy array that has these numbers.
template <class Element, class T>
nb::object numpy_of(std::vector<T>&& values, const std::vector<std::size_t>& shape) {
  static_assert(sizeof(Element) == sizeof(T));
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, Element>(reinterpret_cast<Element*>(kept->data()), shape.size(),
                                                  shape.data(), owner));
}
template <class T>
nb::object numpy_of(std::vector<T>&& values, const std::vector<std::size_t>& shape) {
  return numpy_of<T, T>(std::move(values), shape);
}

inline std::size_t extent(Index n) { return static_cast<std::size_t>(n); }

/// One layer's arrays as a dump, and the arrays themselves, so that they stay.
class Layer {
 public:
  /// `arrays`: by their tensors' names. `manifest`: as Dump::of_memory() takes it.
  Layer(const nb::dict& arrays, const std::string& manifest, std::optional<Index> prompt_len,
        std::vector<Index> positions);

  const Dump& dump() const { return *dump_; }

 private:
  std::vector<nb::ndarray<nb::ro>> arrays_;
  std::optional<Dump> dump_;
};

// Options.

/// Sets a command's options from Python's keywords, in which '_' stands for '-': text, numbers, booleans for
/// flags, a sequence or a text with commas for a list; None counts as not given. Errors are those of the
/// command line, but for the dashes. Throws OptionError.
void read_keywords(const BoundOptions& options, const nb::dict& keywords);

/// (name, meaning, ": words [default]") of each option of a call, for its keywords and its docstring.
nb::list described(const BoundOptions& options);

/// The options of `one`, then those of `other`.
BoundOptions joined(BoundOptions one, const BoundOptions& other);
BoundOptions without(BoundOptions options, const OptionFacts& one);

/// Throws OptionError unless `found`, the length of a list of which a call takes one value, is 1.
void require_one(const OptionFacts& option, std::size_t found);
/// As above, for budgets; `keep` is an alternative spelling.
template <class Budget>
void require_one_budget(const OptionFacts& keep, const std::vector<Budget>& budgets) {
  if (budgets.empty()) throw OptionError(keep, "one", "none (keep, sigma or budget says how much stays)");
  require_one(budgets.front().asked_by != nullptr ? *budgets.front().asked_by : keep, budgets.size());
}

/// Options that every call takes, besides its command's.
struct CallOptions {
  BackendChoice backend = BackendChoice::automatic;
  Precision precision = Precision::f32;
  std::optional<Index> threads;  ///< unset: set_default_threads()
};
BoundOptions bound(CallOptions& options);

/// Options of a command and of the call.
template <class Options>
struct CallArgs {
  Options of = {};
  CallOptions call = {};
};

/// All options of a command and of the call. The package's functions name those that make sense for arrays.
template <class Options>
BoundOptions all_options(CallArgs<Options>& args) {
  return joined(bound(args.of), bound(args.call));
}

/// The keywords of one kind of call. Binding options takes longer than reading them, so they are bound once,
/// and reset for every call.
template <class Options>
class Keywords {
 public:
  using Args = CallArgs<Options>;
  using Bind = BoundOptions (*)(Args&);
  constexpr explicit Keywords(Bind bind = all_options<Options>) : bind_(bind) {}

  /// Arguments from the keywords, on top of prepare(Options&). Needs Python's lock. Converting a value to
  /// text may run Python code that calls this function again.
  template <class Prepare>
  Args read(const nb::dict& keywords, const Prepare& prepare) {
    std::unique_ptr<Bound> bound = idle_ ? std::move(idle_) : std::make_unique<Bound>(bind_);
    prepare(bound->args.of);
    read_keywords(bound->all, keywords);
    Args read = std::exchange(bound->args, bound->initial);
    idle_ = std::move(bound);
    return read;
  }
  Args read(const nb::dict& keywords) {
    return read(keywords, [](Options&) {});
  }
  nb::list described() const { return python::described(Bound(bind_).all); }

 private:
  struct Bound {
    explicit Bound(Bind bind) : all(bind(args)), initial(args) {}
    Args args;
    BoundOptions all;
    Args initial;
  };
  Bind bind_;
  std::unique_ptr<Bound> idle_;
};

// Calls: without the interpreter's lock, on threads that wait for the next call, interruptible by Ctrl-C.

/// Threads of a call that names none; 0: one per core that this process may use.
void set_default_threads(int threads);
/// The number of threads that such a call has.
int default_thread_count();

/// Runs work(compute) without Python's lock, on threads that no other call uses. SIGINT stops it if the call
/// is of the main thread; Python then raises KeyboardInterrupt.
void run_call(const CallOptions& options, const std::function<void(const Compute&)>& work);

/// Runs work.operator()<T>(compute) in the precision of the call. `work` must not touch Python.
template <class Work>
void compute_call(const CallOptions& options, const Work& work) {
  run_call(options, [&](const Compute& compute) {
    in_float32(options.precision) ? work.template operator()<float>(compute)
                                  : work.template operator()<double>(compute);
  });
}

/// A head group of layer 0 with the parts that a call reads. All threads check keys that are used in place.
template <class T>
HeadGroup<T> loaded_head(const Dump& dump, Index g, const HeadParts& parts, Workers& workers);

/// Runs work() on head groups with `parts`. If it throws and the keys were not checked before, the message
/// names the first key that is not finite, where there is one.
template <class T>
void on_parts(const Dump& dump, const HeadParts& parts, const std::function<void()>& work);

/// Runs body(kv_head) for the KV heads of a layer: in parallel while they are small.
void for_each_head(const Dump& dump, Workers& workers, const std::function<void(Index)>& body);

/// Runs body(group) for the KV heads of a layer, with `parts` of their groups.
template <class T>
void on_heads(const Dump& dump, const HeadParts& parts, Workers& workers,
              const std::function<void(const HeadGroup<T>&)>& body) {
  on_parts<T>(dump, parts, [&] {
    for_each_head(dump, workers, [&](Index g) { body(loaded_head<T>(dump, g, parts, workers)); });
  });
}

// Queries.

/// Everything that a query reads besides its options.
struct Request {
  const Layer* layer;      ///< null for queries on arrays without a layer
  const nb::dict& inputs;  ///< arrays, texts and flags by name

  const Dump& dump() const { return layer->dump(); }
};

/// One query of the package. The entry ask(query, layer, inputs, options) finds it by name.
struct Query {
  std::function<nb::list()> options;  ///< as described() lists them
  /// Throws for inputs and options that the query rejects for every layer.
  std::function<void(const nb::dict& inputs, const nb::dict& keywords)> check;
  std::function<nb::dict(const Request&, const nb::dict& keywords)> answer;  ///< results by name
};
using Queries = std::map<std::string, Query>;

/// Adds a query: `read` turns inputs and keywords into its arguments, from which `answer` computes.
template <class Options, class Read, class Answer>
void add_query(Queries& queries, const char* name, Keywords<Options>& keywords, const Read& read,
               const Answer& answer) {
  queries[name] = {
      [&keywords] { return keywords.described(); },
      [&keywords, read](const nb::dict& inputs, const nb::dict& options) { read(keywords, inputs, options); },
      [&keywords, read, answer](const Request& request, const nb::dict& options) {
        return answer(request, read(keywords, request.inputs, options));
      }};
}

void add_layer_queries(Queries& queries);  ///< of one layer's heads
void add_array_queries(Queries& queries);  ///< of curves and interactions, without a layer
void add_growing_options(Queries& queries);
void bind_growing_caches(nb::module_& module);
void bind_layer(nb::module_& module);

inline nb::list texts_of(const std::vector<OptionText>& notes) {
  nb::list texts;
  for (const OptionText& note : notes) texts.append(note.plain().c_str());
  return texts;
}

/// Options of a call with one policy, one budget and one phase, of which policy and budget have no default.
BoundOptions options_of_one_case(CallArgs<EvictionOptions>& args);

/// Throws OptionError unless there is one case, of a policy.
void require_one_case(const EvictionOptions& options);

}  // namespace kvreplay::python
