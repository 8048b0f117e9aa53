#include "data/stored_tensor.hpp"

#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvreplay {
namespace {

Dtype settle_dtype(const NpyArray& array, const std::optional<Dtype>& manifest_dtype) {
  const auto& header = array.header;
  if (!header.dtype) {
    if (manifest_dtype == Dtype::bf16) return Dtype::bf16;
    throw InputError(array.where,
                     "floating point elements, or uint16 bits with \"dtype\": \"bfloat16\" in the manifest",
                     fmt::format("dtype '{}' without it", header.descr));
  }
  if (header.dtype == Dtype::bf16 && manifest_dtype && manifest_dtype != Dtype::bf16) {
    throw InputError(array.where, fmt::format("{} elements, as the manifest says", name_of(*manifest_dtype)),
                     fmt::format("dtype '{}', which is bfloat16", header.descr));
  }
  return *header.dtype;
}

/// Elements between neighbours along each axis.
std::vector<Index> strides_of(const NpyHeader& header) {
  const std::size_t n = header.shape.size();
  std::vector<Index> strides(n);
  Index stride = 1;
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t axis = header.fortran_order ? i : n - 1 - i;
    strides[axis] = stride;
    stride *= header.shape[axis];
  }
  return strides;
}

/// What an array's extents are compared with: the extents that the dump's other files fixed, and which file
/// that was.
struct Known {
  Index extent = 0;
  std::string source;
};

class Checker {
 public:
  explicit Checker(DumpShape& shape) : shape_(shape) {}

  /// Takes an extent from the first file that has it and compares it with that ever after.
  void extents(const StoredTensor& tensor) {
    const TensorFacts& facts = kTensors[tensor.name.tensor];
    std::vector<Index> found{tensor.heads, tensor.samples, tensor.rows, tensor.cols};
    if (facts.axis_count() == 1) found = {tensor.rows};
    if (facts.axis_count() == 3) found.erase(found.begin() + 1);
    std::vector<Index> wanted;
    const std::string* source = nullptr;
    const std::vector<const AxisFacts*> axes = axes_of(tensor.name.tensor);
    for (std::size_t axis = 0; axis < found.size(); ++axis) {
      Known& known = of(axes[axis]);
      if (known.source.empty()) known = {found[axis], tensor.array.where};
      wanted.push_back(known.extent);
      if (known.extent != found[axis] && source == nullptr) source = &known.source;
    }
    if (source == nullptr) return;
    throw InputError(tensor.array.where,
                     fmt::format("shape {} ({}) as {} implies", shape_text(wanted), facts.axes, *source),
                     "shape " + shape_text(found));
  }

  void finish() {
    for (const AxisFacts& axis : kAxes) shape_.*axis.extent = of(&axis).extent;
    if (shape_.n_q % shape_.n_kv != 0) {
      throw InputError(
          source_of(&DumpShape::n_q),
          fmt::format("a multiple of the {} KV heads in {}", shape_.n_kv, source_of(&DumpShape::n_kv)),
          fmt::format("{} query heads", shape_.n_q));
    }
    if (shape_.T_q > shape_.T) {
      throw InputError(
          source_of(&DumpShape::T_q),
          fmt::format("queries for at most the {} positions in {}", shape_.T, source_of(&DumpShape::T)),
          fmt::format("{} queries", shape_.T_q));
    }
  }

 private:
  Known& of(const AxisFacts* axis) { return known_[static_cast<std::size_t>(axis - std::begin(kAxes))]; }
  const std::string& source_of(Index DumpShape::*extent) {
    return of(std::find_if(std::begin(kAxes), std::end(kAxes),
                           [&](const AxisFacts& axis) { return axis.extent == extent; }))
        .source;
  }

  DumpShape& shape_;
  Known known_[std::size(kAxes)];
};

/// Fills by_layer; returns the number of layers.
Index sort_by_layer(StoredLayers& stored, const std::string& dump) {
  Index layers = 0;
  for (const auto& tensor : stored.tensors) {
    layers = std::max(layers, tensor.name.layer < 0 ? tensor.layers : tensor.name.layer + 1);
  }
  for (const auto& [name, text, axes, optional, of_gradients] : kTensors) {
    auto& slots = stored.by_layer[static_cast<int>(name)];
    std::vector<std::pair<Index, std::size_t>> found;
    for (std::size_t i = 0; i < stored.tensors.size(); ++i) {
      const auto& tensor = stored.tensors[i];
      if (tensor.name.tensor != name) continue;
      const Index first = std::max<Index>(tensor.name.layer, 0);
      for (Index layer = first; layer < first + tensor.layers; ++layer) found.emplace_back(layer, i);
    }
    if (found.empty() && optional) continue;
    std::sort(found.begin(), found.end());
    for (const auto& [layer, i] : found) {
      const Index next = std::ssize(slots);
      if (layer < next) {
        throw InputError(stored.tensors[i].array.where, fmt::format("one {} for layer {}", text, layer),
                         "another in " + stored.tensors[slots.back()].array.where);
      }
      if (layer > next) break;
      slots.push_back(i);
    }
    // Layers are counted from what was found, so a gap shows here before anything of its size is set aside.
    const Index complete = std::ssize(slots);
    if (complete < std::max<Index>(layers, 1)) {
      throw InputError(
          dump,
          layers > 0 ? fmt::format("{} for each of {} layers", text, layers) : "q, k and v for each layer",
          layers > 0 ? fmt::format("that layer {} has no {}", complete, text)
                     : "no array with a name of a dump's");
    }
  }
  return layers;
}

}  // namespace

StoredTensor name_axes(FoundArray found, const std::optional<Dtype>& manifest_dtype) {
  const Dtype dtype = settle_dtype(found.array, manifest_dtype);
  const std::vector<Index> strides = strides_of(found.array.header);
  return name_axes(found.name, std::move(found.array), dtype, strides);
}

StoredTensor name_axes(ArrayName name, NpyArray array, Dtype dtype, const std::vector<Index>& strides) {
  StoredTensor tensor;
  tensor.name = name;
  tensor.array = std::move(array);
  tensor.dtype = dtype;
  const auto& shape = tensor.array.header.shape;
  const bool stacked = tensor.name.layer < 0;
  const std::size_t own = kTensors[tensor.name.tensor].axis_count(), axes = stacked ? own + 1 : own;
  // The batch of 1, where there is one, comes first or (stacked) behind the layers.
  std::size_t batch = shape.size();
  if (shape.size() == axes + 1) batch = shape[0] == 1 ? 0 : (stacked && shape[1] == 1 ? 1 : shape.size());
  if (shape.size() != axes && batch == shape.size()) {
    throw InputError(tensor.array.where,
                     fmt::format("shape [{}{}], or with a leading batch of 1", stacked ? "layers, " : "",
                                 kTensors[tensor.name.tensor].axes),
                     "shape " + shape_text(shape));
  }
  std::vector<std::size_t> axis;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i != batch) axis.push_back(i);
  }
  std::size_t next = 0;
  if (stacked) {
    tensor.layers = shape[axis[next]];
    tensor.layer_stride = strides[axis[next++]];
  }
  if (own == 1) {
    tensor.heads = tensor.cols = 1;
    tensor.rows = shape[axis[next]];
    tensor.row_stride = strides[axis[next]];
    tensor.col_stride = 1;
    return tensor;
  }
  tensor.heads = shape[axis[next]];
  tensor.head_stride = strides[axis[next++]];
  if (own == 4) {
    tensor.samples = shape[axis[next]];
    tensor.sample_stride = strides[axis[next++]];
  }
  tensor.rows = shape[axis[next]];
  tensor.row_stride = strides[axis[next++]];
  tensor.cols = shape[axis[next]];
  tensor.col_stride = strides[axis[next]];
  return tensor;
}

StoredLayers arrange(std::vector<StoredTensor> tensors, const std::string& dump) {
  StoredLayers stored;
  stored.tensors = std::move(tensors);
  stored.shape.layers = sort_by_layer(stored, dump);
  Checker checker(stored.shape);
  for (Index layer = 0; layer < stored.shape.layers; ++layer) {
    for (const TensorFacts& tensor : kTensors)
      if (!stored.by_layer[static_cast<int>(tensor.id)].empty()) checker.extents(stored.at(tensor.id, layer));
  }
  checker.finish();
  return stored;
}

}  // namespace kvreplay
