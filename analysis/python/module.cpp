#include "analysis/python/calls.hpp"
#include "analysis/python/layer.hpp"
#include "data/error.hpp"
#include "sim/backend/backend_cuda.hpp"
#include "sim/cuda/runtime.hpp"
#include "sim/freed_memory.hpp"

#include <exception>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <string>
#include <vector>

// kvreplay._core: bindings of the library for the Python package, without computations of their own.

namespace nb = nanobind;

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
  module.def(
      "set_threads",
      [](const nb::object& threads) {
        CallOptions options;
        nb::dict given;
        given["threads"] = threads;
        read_keywords(bound(options), given);
        set_default_threads(static_cast<int>(options.threads.value_or(0)));
      },
      nb::arg("threads").none());
  module.def("threads", [] { return Lease(default_threads()).workers().threads(); });
  module.def(
      "alternatives",
      [](const std::string& given, const std::vector<std::string>& names) {
        return alternatives(given, names);
      },
      nb::arg("given"), nb::arg("names"), "What may have been meant, to go behind a message.");
  bind_layer(module);
  bind_tokens(module);
  bind_evictions(module);
  bind_growing_caches(module);
  bind_outputs(module);
  bind_channels(module);
  bind_budgets(module);
  bind_compensations(module);
}
