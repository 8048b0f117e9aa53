#include "analysis/python/query.hpp"
#include "analysis/results/dump_set.hpp"
#include "data/dtype.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>
#include <utility>
#include <variant>

namespace kvreplay::python {
namespace {

using nb::dlpack::dtype_code;
using AnyArray = nb::ndarray<nb::ro>;

bool on_host(int device) {
  return device == nb::device::cpu::value || device == nb::device::cuda_host::value ||
         device == nb::device::rocm_host::value;
}

std::optional<AnyArray> imported(nb::handle object) {
  AnyArray array;
  if (nb::try_cast<AnyArray>(object, array) && on_host(array.device_type())) return array;
  return std::nullopt;
}

std::string dtype_name(const AnyArray& array) {
  const nb::dlpack::dtype dtype = array.dtype();
  if (static_cast<dtype_code>(dtype.code) == dtype_code::Bool) return "bool";
  constexpr const char* kKinds[] = {"int", "uint", "float", "opaque", "bfloat", "complex"};
  return fmt::format("{}{}", dtype.code < std::size(kKinds) ? kKinds[dtype.code] : "kind", dtype.bits);
}

/// An array in the host's memory.
struct HostArray {
  AnyArray numbers;
  bool bfloat = false;  ///< 16 bits each that are a bfloat16's
};

std::optional<Dtype> dtype_of(const HostArray& array) {
  const auto [code, bits, lanes] = array.numbers.dtype();
  const bool is_bfloat = static_cast<dtype_code>(code) == dtype_code::Bfloat && bits == 16 && lanes == 1;
  if (array.bfloat || is_bfloat) return Dtype::bf16;
  if (static_cast<dtype_code>(code) != dtype_code::Float || lanes != 1) return std::nullopt;
  return bits == 16   ? std::optional(Dtype::f16)
         : bits == 32 ? std::optional(Dtype::f32)
         : bits == 64 ? std::optional(Dtype::f64)
                      : std::nullopt;
}

/// An array from NumPy, torch or any object with DLPack or the buffer protocol. Host memory is not copied;
/// device memory is copied to the host if this build has a CUDA backend. `name` appears in error messages.
/// Throws InputError.
HostArray array_of(const char* name, nb::handle object) {
  const auto arrays = [] { return nb::module_::import_("kvreplay._arrays"); };
  if (nb::hasattr(object, "mask")) arrays().attr("require_unmasked")(name, object);
  if (const auto array = imported(object)) return {*array};
  for (const nb::handle form : arrays().attr("readable_forms")(name, object))  // ends with the reason
    if (const auto array = imported(form[0])) return {*array, nb::cast<bool>(form[1])};
  nb::raise("%s: no form is left", name);
}

MemoryArray tensor_of(Tensor tensor, const HostArray& array) {
  const auto dtype = dtype_of(array);
  if (!dtype)
    throw InputError(std::string(name_of(tensor)), "float16, bfloat16, float32 or float64 numbers",
                     dtype_name(array.numbers));
  MemoryArray memory{tensor, *dtype, array.numbers.data(), {}, {}};
  for (std::size_t axis = 0; axis < array.numbers.ndim(); ++axis) {
    memory.shape.push_back(static_cast<Index>(array.numbers.shape(axis)));
    memory.strides.push_back(static_cast<Index>(array.numbers.stride(axis)));
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
    if (array.is_none()) continue;
    const std::string name = nb::cast<std::string>(key);
    const auto tensor = kTensors.named(name);
    if (!tensor) throw InputError("unknown array '" + name + "'");
    const HostArray found = array_of(name.c_str(), array);
    tensors.push_back(tensor_of(*tensor, found));
    arrays_.push_back(found.numbers);
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
