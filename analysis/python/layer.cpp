#include "analysis/python/query.hpp"
#include "analysis/results/dump_set.hpp"
#include "data/dtype.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>
#include <utility>
#include <variant>

namespace kvreplay::python {
namespace {

/// A tensor of a layer from (NumPy array, True if its integers are bits of bfloat16).
MemoryArray tensor_of(Tensor tensor, const nb::ndarray<nb::ro>& array, bool bfloat) {
  const auto bits = array.dtype().bits;
  MemoryArray memory{tensor,
                     bfloat       ? Dtype::bf16
                     : bits == 16 ? Dtype::f16
                     : bits == 32 ? Dtype::f32
                                  : Dtype::f64,
                     array.data(),
                     {},
                     {}};
  for (std::size_t axis = 0; axis < array.ndim(); ++axis) {
    memory.shape.push_back(static_cast<Index>(array.shape(axis)));
    memory.strides.push_back(static_cast<Index>(array.stride(axis)));
  }
  return memory;
}

/// One layer of a tensor.
template <class T>
nb::object tensor_array(const Dump& dump, Tensor tensor, Index layer) {
  const DumpShape& shape = dump.shape();
  const Index heads = shape.heads(tensor), size = shape.head_size(tensor);
  std::vector<T> values(extent(heads * size));
  {
    const nb::gil_scoped_release unlocked;
    for (Index head = 0; head < heads; ++head) dump.read(tensor, layer, head, values.data() + head * size);
  }
  std::vector<std::size_t> extents;
  for (const Index length : shape.extents(tensor)) extents.push_back(extent(length));
  return numpy_of(std::move(values), extents);
}

bool is_float64(const Dump& dump, Tensor tensor, Index layer) {
  for (const DumpFile& file : dump.files())
    if (file.tensor == tensor && (file.layer == layer || file.layer < 0)) return file.dtype == Dtype::f64;
  return false;
}

/// By name, what a Layer is made of; float64 where the dump has that, and else float32, which all others
/// convert to exactly.
nb::dict layer_arrays(const Dump& dump, Index layer) {
  nb::dict arrays;
  for (const TensorFacts& tensor : kTensors) {
    const bool other = tensor.id == Tensor::o || tensor.axis_count() == 1 ||
                       ((tensor.id == Tensor::g_window || tensor.id == Tensor::q_ref) &&
                        dump.shape().window_end != dump.shape().l);
    if (other || !dump.has(tensor.id)) continue;
    arrays[std::string(tensor.name).c_str()] = is_float64(dump, tensor.id, layer)
                                                   ? tensor_array<double>(dump, tensor.id, layer)
                                                   : tensor_array<float>(dump, tensor.id, layer);
  }
  return arrays;
}

/// The keywords of Layer() that say how a dump's layer attends.
nb::dict layer_facts(const Dump& dump, Index layer) {
  const AttentionRule rule = dump.rule(layer);
  nb::dict facts;
  facts["scale"] = rule.scale;
  facts["causal"] = rule.causal;
  if (rule.sliding_window) facts["sliding_window"] = *rule.sliding_window;
  if (rule.two_sided) facts["sliding_window_two_sided"] = true;
  if (rule.softcap) facts["logit_softcap"] = *rule.softcap;
  if (!rule.sink_logit.empty()) facts["sink_logit"] = rule.sink_logit;
  if (const auto rope = dump.rope(layer)) {
    nb::dict rotation;
    rotation["style"] = rope->style == Rope::Style::half ? "half" : "interleaved";
    if (rope->interleaved_in_ggml) rotation["ggml_style"] = "interleaved";
    rotation["rotary_dim"] = rope->rotary_dim;
    rotation["inv_freq"] = rope->inv_freq;
    rotation["attention_factor"] = rope->attention_factor;
    facts["rope"] = rotation;
  }
  if (const auto eps = dump.output_norm()) {
    nb::dict norm;
    norm["kind"] = "rms";
    norm["eps"] = *eps;
    facts["output_norm"] = norm;
  }
  return facts;
}

/// Properties of a layer and a dump: their sizes and notes.
template <class Class, class Of>
void def_shape(Class& bound, const Of& dump_of) {
  const auto extent_of = [&](Index DumpShape::*extent) {
    return [extent, dump_of](const typename Class::Type& self) { return dump_of(self).shape().*extent; };
  };
  bound.def_prop_ro("n_q", extent_of(&DumpShape::n_q), "Query heads.")
      .def_prop_ro("n_kv", extent_of(&DumpShape::n_kv), "KV heads; query head h reads h // (n_q / n_kv).")
      .def_prop_ro("d", extent_of(&DumpShape::d), "Channels of a query and a key.")
      .def_prop_ro("d_v", extent_of(&DumpShape::d_v), "Channels of a value.")
      .def_prop_ro("T", extent_of(&DumpShape::T), "Positions with a key.")
      .def_prop_ro("T_q", extent_of(&DumpShape::T_q), "Positions with a query: the last T_q.")
      .def_prop_ro("prompt_len", extent_of(&DumpShape::l), "l: candidates for eviction are 0 .. l - 1.")
      .def_prop_ro(
          "notes", [dump_of](const typename Class::Type& self) { return dump_of(self).notes(); },
          "What was inferred rather than stated, a line each.");
}

}  // namespace

Layer::Layer(const nb::dict& arrays, const std::string& manifest, std::optional<Index> prompt_len,
             std::vector<Index> positions) {
  std::vector<MemoryArray> tensors;
  for (const auto& [key, array] : arrays) {
    const std::string name = nb::cast<std::string>(key);
    nb::ndarray<nb::ro>& numbers = arrays_.emplace_back();
    if (!nb::try_cast(nb::object(array[0]), numbers))  // of bytes that no stride of whole numbers reaches
      nb::module_::import_("kvreplay._arrays").attr("refuse")(name, array[0]);
    tensors.push_back(tensor_of(kTensors.named(name).value(), numbers, nb::cast<bool>(array[1])));
  }
  dump_.emplace(Dump::of_memory(tensors, manifest, {prompt_len}, std::move(positions)));
}

void bind_layer(nb::module_& module) {
  nb::class_<Layer> layer(module, "Layer", "One layer's arrays and how it attends.");
  layer.def(nb::init<nb::dict, std::string, std::optional<Index>, std::vector<Index>>(), nb::arg("arrays"),
            nb::arg("manifest"), nb::arg("prompt_len").none(), nb::arg("positions"));
  def_shape(layer, [](const Layer& self) -> const Dump& { return self.dump(); });

  nb::class_<Dump> dump(module, "Dump", "A dump folder, or a .npz, that was opened and checked.");
  dump.def(
          "__init__",
          [](Dump* self, const std::string& path,
             const std::variant<std::monostate, Index, std::string>& prompt_len) {
            DumpOptions options;
            if (const Index* tokens = std::get_if<Index>(&prompt_len)) options.prompt_len = *tokens;
            if (const std::string* name = std::get_if<std::string>(&prompt_len)) options.prompt_len = *name;
            new (self) Dump(Dump::open(path, options));
          },
          nb::arg("path"), nb::arg("prompt_len").none())
      .def_prop_ro(
          "name", [](const Dump& self) { return self.name(); }, "Its folder's.")
      .def_prop_ro(
          "model", [](const Dump& self) { return self.model(); }, "The model's name.")
      .def_prop_ro(
          "layers", [](const Dump& self) { return self.shape().layers; }, "How many it has.")
      .def_prop_ro(
          "texts",
          [](const Dump& self) { return self.tokens() ? self.tokens()->text : std::vector<std::string>{}; },
          "Of the tokens, [T]; empty where it has none.")
      .def("layer_arrays", layer_arrays, nb::arg("layer"))
      .def("layer_facts", layer_facts, nb::arg("layer"));
  def_shape(dump, [](const Dump& self) -> const Dump& { return self; });

  module.def(
      "dump_names",
      [](const std::vector<std::string>& paths) {
        std::vector<std::string> names;
        for (const std::string& path : paths) names.push_back(DumpSet::name_among(names, path));
        return names;
      },
      nb::arg("paths"), "What a run over these dumps calls each.");
}

}  // namespace kvreplay::python
