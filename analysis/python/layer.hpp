#pragma once

#include "analysis/python/arrays.hpp"
#include "data/dump.hpp"

#include <nanobind/nanobind.h>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay::python {

/// One layer's arrays as a dump, and the arrays themselves, so that they stay.
class Layer {
 public:
  /// `arrays`: by their tensors' names. `manifest`: as Dump::of_memory() takes it.
  Layer(const nb::dict& arrays, const std::string& manifest, std::optional<Index> prompt_len,
        std::vector<Index> positions);

  const Dump& dump() const { return *dump_; }

 private:
  std::vector<HostArray> arrays_;
  std::optional<Dump> dump_;
};

void bind_layer(nb::module_& module);
void bind_tokens(nb::module_& module);
void bind_evictions(nb::module_& module);
void bind_growing_caches(nb::module_& module);
void bind_outputs(nb::module_& module);
void bind_channels(nb::module_& module);
void bind_budgets(nb::module_& module);
void bind_compensations(nb::module_& module);

}  // namespace kvreplay::python
