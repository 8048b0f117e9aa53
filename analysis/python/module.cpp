#include "analysis/eviction/recipe.hpp"
#include "analysis/python/query.hpp"
#include "data/error.hpp"
#include "sim/backend/backend_cuda.hpp"
#include "sim/cuda/runtime.hpp"
#include "sim/freed_memory.hpp"

#include <exception>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

// kvreplay._core: bindings of the library for the Python package, without computations of their own.

namespace kvreplay::python {
namespace {

/// The queries by name; they live as long as the process.
const Query& query_named(const std::string& name) {
  static const Queries* const all = [] {
    auto* queries = new Queries;
    add_layer_queries(*queries);
    add_array_queries(*queries);
    add_growing_options(*queries);
    return queries;
  }();
  return all->at(name);
}

void set_threads(const nb::object& threads) {
  CallOptions options;
  nb::dict given;
  given["threads"] = threads;
  read_keywords(bound(options), given);
  set_default_threads(static_cast<int>(options.threads.value_or(0)));
}

void bind_queries(nb::module_& module) {
  module.def(
      "ask",
      [](const std::string& query, const Layer* layer, const nb::dict& inputs, const nb::dict& options) {
        return query_named(query).answer({layer, inputs}, options);
      },
      nb::arg("query"), nb::arg("layer").none(), nb::arg("inputs"), nb::arg("options"),
      "Results of a query by name: arrays, numbers and texts.");
  module.def(
      "options", [](const std::string& query) { return query_named(query).options(); }, nb::arg("query"),
      "(name, meaning, words and default) of a query's options.");
  module.def(
      "check",
      [](const std::string& query, const nb::dict& inputs, const nb::dict& options) {
        query_named(query).check(inputs, options);
      },
      nb::arg("query"), nb::arg("inputs"), nb::arg("options"),
      "Rejects inputs and options that the query rejects for every layer.");
}

}  // namespace
}  // namespace kvreplay::python

NB_MODULE(_core, module) {
  using namespace kvreplay;
  using namespace kvreplay::python;
  keep_freed_memory(32 << 20, 64 << 20);  // as glibc would by itself once an array of 32 MiB was freed
  nb::exception<InputError>(module, "InputError", PyExc_ValueError);
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const cuda::DeviceError& device) {
      PyErr_SetString(PyExc_RuntimeError, device.what());
    }
  });
  module.attr("__version__") = KVREPLAY_VERSION;
  module.def("why_no_cuda", why_no_cuda,
             "Why this build and machine compute on no GPU; empty where they can.");
  module.def("set_threads", set_threads, nb::arg("threads").none());
  module.def("threads", default_thread_count);
  module.def("alternatives", alternatives, nb::arg("given"), nb::arg("names"),
             "Names that may have been meant, to go behind a message.");
  module.def(
      "recipe", [](const std::string& file) { return to_json(read_recipe(file)).dump(); }, nb::arg("file"),
      "A recipe's JSON, every field written out.");
  bind_layer(module);
  bind_queries(module);
  bind_growing_caches(module);
}
