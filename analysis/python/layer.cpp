#include "analysis/python/layer.hpp"

#include "data/error.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <utility>

namespace kvreplay::python {
namespace {

Dump dump_of(const std::vector<Tensor>& tensors, const std::vector<HostArray>& arrays,
             const std::string& manifest, std::optional<Index> prompt_len, std::vector<Index> positions) {
  std::vector<MemoryArray> memory;
  for (std::size_t n = 0; n < arrays.size(); ++n) memory.push_back(tensor_of(tensors[n], arrays[n]));
  return Dump::of_memory(memory, manifest, {prompt_len}, std::move(positions));
}

}  // namespace

Layer::Layer(const nb::dict& arrays, const std::string& manifest, std::optional<Index> prompt_len,
             std::vector<Index> positions) {
  std::vector<Tensor> tensors;
  for (const auto& [key, array] : arrays) {
    if (array.is_none()) continue;
    const std::string name = nb::cast<std::string>(key);
    const auto tensor = kTensors.named(name);
    if (!tensor) throw InputError("unknown array '" + name + "'");
    tensors.push_back(*tensor);
    arrays_.push_back(array_of(name.c_str(), array));
  }
  dump_.emplace(dump_of(tensors, arrays_, manifest, prompt_len, std::move(positions)));
}

void bind_layer(nb::module_& module) {
  const auto extent_of = [](Index DumpShape::*extent) {
    return [extent](const Layer& layer) { return layer.dump().shape().*extent; };
  };
  nb::class_<Layer>(module, "Layer", "One layer's arrays and how it attends.")
      .def(nb::init<nb::dict, std::string, std::optional<Index>, std::vector<Index>>(), nb::arg("arrays"),
           nb::arg("manifest"), nb::arg("prompt_len").none(), nb::arg("positions"))
      .def_prop_ro("n_q", extent_of(&DumpShape::n_q), "Query heads.")
      .def_prop_ro("n_kv", extent_of(&DumpShape::n_kv), "KV heads; query head h reads h // (n_q / n_kv).")
      .def_prop_ro("d", extent_of(&DumpShape::d), "Channels of a query and a key.")
      .def_prop_ro("d_v", extent_of(&DumpShape::d_v), "Channels of a value.")
      .def_prop_ro("T", extent_of(&DumpShape::T), "Positions with a key.")
      .def_prop_ro("T_q", extent_of(&DumpShape::T_q), "Positions with a query: the last T_q.")
      .def_prop_ro("prompt_len", extent_of(&DumpShape::l), "l: candidates for eviction are 0 .. l - 1.")
      .def_prop_ro(
          "notes", [](const Layer& layer) { return layer.dump().notes(); },
          "What was inferred rather than stated, a line each.");
}

}  // namespace kvreplay::python
