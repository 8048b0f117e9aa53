#include "data/stored_tensor.hpp"

#include "data/error.hpp"
#include "data/not_a_dump.hpp"
#include "data/npy_array.hpp"
#include "data/npz.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

namespace kvreplay {
namespace {

/// Takes digits off the front of `text`. A layer that no dump has is still a layer: the ones before it are
/// missing.
std::optional<Index> take_number(std::string_view& text) {
  constexpr Index kMost = std::numeric_limits<Index>::max() - 1;  // whose count is a number still
  Index number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::invalid_argument || text.front() == '-') return std::nullopt;
  text.remove_prefix(end - text.data());
  return error == std::errc::result_out_of_range ? kMost : std::min(number, kMost);
}

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

class Finder {
 public:
  Finder(std::vector<FoundArray>& arrays, std::vector<std::string>& passed_over)
      : arrays_(arrays), passed_over_(passed_over) {}

  /// `prefix`: the folder's name within the dump, "" or "layer_00/".
  void folder(const std::filesystem::path& path, const std::string& prefix) {
    for (const auto& entry : sorted(path)) {
      const std::string name = entry.filename().string();
      if (name.starts_with('.')) continue;  // hidden files, and what is still being written
      if (name.ends_with(".npy")) {
        const auto parsed = parse_array_name(prefix + name);
        if (parsed) {
          arrays_.push_back({*parsed, open_npy(entry.string(), std::make_shared<FileSource>(entry))});
        } else {
          passed_over_.push_back(entry.string());
        }
      } else if (name.ends_with(".npz")) {
        archive(entry, prefix);
      } else if (prefix.empty() && layer_of_folder(name)) {
        folder(entry, name + "/");
      }
    }
  }

  void archive(const std::filesystem::path& path, std::string prefix) {
    const NpzArchive npz = NpzArchive::open(path);
    const std::string stem = path.stem().string();
    if (prefix.empty() && layer_of_folder(stem)) prefix = stem + "/";
    for (std::size_t i = 0; i < npz.members().size(); ++i) {
      const std::string& name = npz.members()[i].name;
      const std::string where = path.string() + ":" + name;
      if (const auto parsed = parse_array_name(prefix + name)) {
        arrays_.push_back({*parsed, open_npy(where, npz.source(i))});
      } else if (!name.ends_with('/')) {
        passed_over_.push_back(where);
      }
    }
  }

 private:
  static std::vector<std::filesystem::path> sorted(const std::filesystem::path& folder) {
    std::error_code error;
    std::vector<std::filesystem::path> paths;
    auto entry = std::filesystem::directory_iterator(folder, error);
    for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error))
      paths.push_back(entry->path());
    if (error) throw InputError(folder.string(), "a readable folder", error.message());
    std::sort(paths.begin(), paths.end());
    return paths;
  }

  std::vector<FoundArray>& arrays_;
  std::vector<std::string>& passed_over_;
};

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

/// Expected extent of an array's axis, and the file of the dump that fixed it.
struct Known {
  Index extent = 0;
  std::string source;
};

class Checker {
 public:
  explicit Checker(DumpShape& shape) : shape_(shape) {}

  /// Takes an extent from the first file that has it; compares every later file with it.
  void extents(const StoredTensor& tensor) {
    const TensorFacts& facts = kTensors[tensor.name.tensor];
    std::vector<Index> found{tensor.heads, tensor.samples, tensor.rows, tensor.cols};
    if (facts.axis_count() == 1) found = {tensor.rows};
    if (facts.axis_count() == 3) found.erase(found.begin() + 1);
    std::vector<Index> wanted;
    const std::string* source = nullptr;
    const AxisFacts* differing = nullptr;
    const std::vector<const AxisFacts*> axes = axes_of(tensor.name.tensor);
    for (std::size_t axis = 0; axis < found.size(); ++axis) {
      Known& known = of(axes[axis]);
      if (known.source.empty()) known = {found[axis], tensor.array.where};
      wanted.push_back(known.extent);
      if (known.extent == found[axis] || source != nullptr) continue;
      source = &known.source;
      differing = axes[axis];
    }
    if (source == nullptr) return;
    throw InputError(tensor.array.where,
                     fmt::format("shape {} ({}) as {} implies", shape_text(wanted), facts.axes, *source),
                     fmt::format("shape {}{}", shape_text(found), way_out(tensor.name.layer, *differing)));
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
  /// Advice in the error for a layer whose extent along an axis differs from that of the layers before it.
  static std::string way_out(Index layer, const AxisFacts& axis) {
    if (layer < 1) return "";
    if (axis.extent == &DumpShape::T || axis.extent == &DumpShape::T_q)
      return "; a cache that was cut to its window lacks positions: capture keys before that";
    if (axis.extent == &DumpShape::n_q || axis.extent == &DumpShape::n_kv || axis.extent == &DumpShape::d ||
        axis.extent == &DumpShape::d_v)
      return "; layers of one dump have one shape: put those of another into a dump of their own, whose "
             "manifest's layers says which they are";
    return "";
  }

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

/// Bytes of its own.
class OwnedSource final : public MemorySource {
 public:
  explicit OwnedSource(std::vector<std::byte> bytes) : MemorySource(bytes), bytes_(std::move(bytes)) {}

 private:
  std::vector<std::byte> bytes_;  // moved, they stay where they are
};

/// The elements in C order.
std::vector<std::byte> gathered(const MemoryArray& array, Index count) {
  const std::size_t size = size_of(array.dtype);
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * size);
  const auto* numbers = static_cast<const std::byte*>(array.numbers);
  std::byte* to = bytes.data();
  in_c_order(array.shape, array.strides,
             [&](Index place) { to = std::copy_n(numbers + place * static_cast<Index>(size), size, to); });
  return bytes;
}

StoredTensor in_memory(const MemoryArray& array) {
  NpyArray stored;
  stored.where = name_of(array.tensor);
  stored.header.descr = kDtypes[array.dtype].descr;
  stored.header.dtype = array.dtype;
  stored.header.big_endian = std::endian::native == std::endian::big;
  stored.header.shape = array.shape;
  Index last = 0;
  bool backwards = false;
  for (std::size_t axis = 0; axis < array.shape.size(); ++axis) {
    if (array.shape[axis] < 1)
      throw InputError(stored.where, "extents of at least 1", "shape " + shape_text(array.shape));
    stored.header.count *= array.shape[axis];
    last += (array.shape[axis] - 1) * array.strides[axis];
    backwards = backwards || (array.shape[axis] > 1 && array.strides[axis] < 0);
  }
  // Along an axis of 1 any stride will do; this one says that nothing lies between.
  std::vector<Index> strides = strides_of(array.shape, false);
  if (backwards) {
    stored.source = std::make_shared<OwnedSource>(gathered(array, stored.header.count));
  } else {
    const auto* bytes = static_cast<const std::byte*>(array.numbers);
    const std::size_t size = static_cast<std::size_t>(last + 1) * size_of(array.dtype);
    stored.source = std::make_shared<MemorySource>(std::span(bytes, size));
    for (std::size_t axis = 0; axis < strides.size(); ++axis)
      if (array.shape[axis] > 1) strides[axis] = array.strides[axis];
  }
  return name_axes({array.tensor, 0}, std::move(stored), array.dtype, strides);
}

}  // namespace

std::optional<Index> layer_of_folder(std::string_view name) {
  if (!take(name, "layer_")) return std::nullopt;
  const auto layer = take_number(name);
  return name.empty() ? layer : std::nullopt;
}

std::optional<ArrayName> parse_array_name(std::string_view name) {
  if (!name.ends_with(".npy")) return std::nullopt;
  name.remove_suffix(4);
  if (const auto tensor = kTensors.named(name)) return ArrayName{*tensor, -1};
  std::string_view rest = name;
  for (const auto& [lead, separators] : {std::pair{"layer_", "_/"}, {"layers.", "."}}) {
    if (!take(rest, lead)) continue;
    const auto layer = take_number(rest);
    if (!layer || rest.empty() || std::string_view(separators).find(rest.front()) == std::string_view::npos) {
      return std::nullopt;
    }
    const auto tensor = kTensors.named(rest.substr(1));
    return tensor ? std::optional(ArrayName{*tensor, *layer}) : std::nullopt;
  }
  for (const TensorFacts& tensor : kTensors) {
    rest = name;
    if (!take(rest, tensor.name) || !take(rest, "_")) continue;
    const auto layer = take_number(rest);
    if (layer && rest.empty()) return ArrayName{tensor.id, *layer};
  }
  return std::nullopt;
}

std::vector<FoundArray> find_arrays(const std::filesystem::path& dump,
                                    std::vector<std::string>& passed_over) {
  std::error_code error;
  const auto status = std::filesystem::status(dump, error);
  std::vector<FoundArray> arrays;
  Finder finder(arrays, passed_over);
  if (std::filesystem::is_directory(status)) {
    finder.folder(dump, "");
  } else if (std::filesystem::is_regular_file(status) && dump.extension() == ".npz") {
    finder.archive(dump, "");
  } else if (std::filesystem::exists(status)) {
    throw InputError(dump.string(), "a dump folder or an .npz file",
                     std::filesystem::is_regular_file(status) ? file_kind(dump) : "neither");
  } else {
    throw InputError(dump.string(), "a dump folder",
                     error && status.type() != std::filesystem::file_type::not_found
                         ? error.message()
                         : "no such file or folder");
  }
  return arrays;
}

StoredTensor name_axes(FoundArray found, const std::optional<Dtype>& manifest_dtype) {
  const Dtype dtype = settle_dtype(found.array, manifest_dtype);
  const std::vector<Index> strides = strides_of(found.array.header.shape, found.array.header.fortran_order);
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
    throw InputError(
        tensor.array.where,
        fmt::format("shape [{}{}], or with a leading batch of 1", stacked ? "layers, " : "",
                    kTensors[tensor.name.tensor].axes),
        fmt::format("shape {}{}", shape_text(shape),
                    stacked && shape.size() == own
                        ? fmt::format("; one layer's is named layer_00/{}.npy, or is in layer_00.npz",
                                      name_of(tensor.name.tensor))
                        : ""));
  }
  struct Axis {
    Index StoredTensor::*extent, StoredTensor::*stride;
  };
  std::vector<Axis> named;
  if (stacked) named.push_back({&StoredTensor::layers, &StoredTensor::layer_stride});
  if (own > 1) named.push_back({&StoredTensor::heads, &StoredTensor::head_stride});
  if (own == 4) named.push_back({&StoredTensor::samples, &StoredTensor::sample_stride});
  named.push_back({&StoredTensor::rows, &StoredTensor::row_stride});
  if (own > 1) named.push_back({&StoredTensor::cols, &StoredTensor::col_stride});
  tensor.heads = tensor.cols = tensor.col_stride = 1;  // of a tensor that has rows alone
  auto next = named.begin();
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i == batch) continue;
    tensor.*next->extent = shape[i];
    tensor.*next++->stride = strides[i];
  }
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

std::vector<StoredTensor> tensors_in_memory(const std::vector<MemoryArray>& arrays) {
  std::vector<StoredTensor> tensors;
  tensors.reserve(arrays.size());
  for (const MemoryArray& array : arrays) tensors.push_back(in_memory(array));
  return tensors;
}

void require_ascending(const std::vector<Index>& position, const DumpShape& shape) {
  if (position.empty()) return;
  if (std::ssize(position) != shape.T)
    throw InputError("positions", fmt::format("{} of them, one a key", shape.T),
                     std::to_string(position.size()));
  for (std::size_t p = 0; p < position.size(); ++p) {
    const Index before = p == 0 ? -1 : position[p - 1], row = static_cast<Index>(p);
    const bool adjacent = row <= shape.first_query() || position[p] == before + 1;
    if (position[p] <= before || !adjacent)
      throw InputError("positions",
                       adjacent ? "each above the one before, from 0 on" : "adjacent ones of the queries",
                       fmt::format("{} behind {}", position[p], before));
  }
}

}  // namespace kvreplay
