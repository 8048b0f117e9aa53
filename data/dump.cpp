#include "data/dump.hpp"

#include "data/axis_order.hpp"
#include "data/console.hpp"
#include "data/error.hpp"
#include "data/json_fields.hpp"
#include "data/manifest.hpp"
#include "data/mapped_file.hpp"
#include "data/not_a_dump.hpp"
#include "data/npy_array.hpp"
#include "data/stored_tensor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <span>
#include <system_error>
#include <utility>

namespace kvreplay {

struct Dump::Impl {
  std::filesystem::path folder;
  std::string name;
  std::string model;
  Manifest manifest;
  StoredLayers stored;
  DumpShape shape;
  std::vector<DumpFile> files;
  std::optional<TokenLabels> tokens;
  std::vector<Index> position;
  std::vector<std::string> notes;

  /// Arranges tensors and validates them against each other, the manifest, the options and the labels.
  StoredLayers checked(std::vector<StoredTensor> tensors, const DumpOptions& options) const;
  /// Takes over tensors that passed checked().
  void take(const std::vector<StoredTensor>& tensors, bool has_manifest, const DumpOptions& options);
  /// Throws for the number at `bad`, of some sample's matrix.
  [[noreturn]] void refuse(const StoredTensor& stored, Tensor tensor, Index layer, Index head, Index sample,
                           Index bad, bool nan) const;
};

namespace {

constexpr std::size_t kLongestName = 200, kLongestNote = 1000;

/// Labels of 10 million tokens are 200 MB.
constexpr std::uintmax_t kMostTokens = std::uintmax_t{1} << 30;

/// A file's text; empty where there is none of that name.
std::optional<std::string> text_of(const std::filesystem::path& path, std::uintmax_t most) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    if (std::filesystem::is_symlink(path, error))
      throw InputError(path.string(), "a readable file", "a symbolic link to none");
    return std::nullopt;
  }
  if (error) throw InputError(path.string(), "a readable file", error.message());
  return file_text(path, most);
}

/// "not used: DUMP/layer_00/query.npy and 2 more, whose names are none of a dump's (q.npy, k.npy, v.npy)"
std::string not_used(const std::vector<std::string>& names) {
  return fmt::format("not used: {}, whose name{} none of a dump's (layer_00/q.npy, k.npy, v.npy)",
                     first_names(names, 1), names.size() > 1 ? "s are" : " is");
}

Index prompt_length(const Manifest& manifest, const DumpOptions& options, const DumpShape& shape) {
  if (!options.prompt_len) return manifest.prompt_len.value_or(shape.T);
  const auto& [tokens, name] = *options.prompt_len;
  const auto& ends = manifest.prompt_ends;
  const auto named = std::ranges::find(ends, name, [](const auto& end) { return end.first; });
  if (!name.empty() && named == ends.end()) {
    std::string names;
    for (const auto& [known, _] : ends) names += (names.empty() ? "" : ", ") + known;
    throw InputError("prompt length",
                     names.empty() ? "a number: prompt_ends of manifest.json names no end"
                                   : fmt::format("a number, or an end that prompt_ends names ({})", names),
                     fmt::format("'{}'", displayable(name, kLongestName)));
  }
  const Index l = name.empty() ? tokens : named->second;
  if (l < 1 || l > shape.T)
    throw InputError("prompt length", fmt::format("1 to {}, the positions of the dump", shape.T),
                     std::to_string(l));
  return l;
}

/// Notes on everything that open() inferred because it is not stated.
void note_inferences(const Manifest& manifest, bool has_manifest, const DumpOptions& options,
                     const DumpShape& shape, std::vector<std::string>& notes) {
  if (!has_manifest) notes.push_back("there is no manifest.json: everything is inferred from the files");
  if (!manifest.model) notes.push_back("model is not stated: the dump's own name is shown");
  if (!manifest.prompt_len && !options.prompt_len) {
    notes.push_back(fmt::format(
        "prompt_len is not stated: all {} positions are the prompt, there are no decoding steps", shape.T));
  }
  if (!manifest.scale) notes.push_back(fmt::format("scale is not stated: 1/sqrt({}) is used", shape.d));
  if (!has_manifest) {
    notes.push_back("attention is taken to be causal and full, without soft cap and sink logits");
  }
  if (!manifest.causal.value_or(true) && !manifest.two_sided && !manifest.sliding_window.empty())
    notes.push_back(
        "sliding_window hides what is behind a row only: an encoder's is two-sided, if "
        "sliding_window_two_sided says so");
  notes.insert(notes.end(), manifest.notes.begin(), manifest.notes.end());
  if (!manifest.rope)
    notes.push_back(manifest.rope_note + ": metrics that undo the rotation are unavailable");
}

void note_dtypes(const std::vector<DumpFile>& files, const Manifest& manifest,
                 std::vector<std::string>& notes) {
  for (const auto& file : files) {
    if (kTensors[file.tensor].axis_count() > 1 && !kTensors[file.tensor].of_gradients && manifest.dtype &&
        file.dtype != *manifest.dtype) {
      notes.push_back(fmt::format("the manifest says {}, {} holds {}: the files' own dtypes are used",
                                  name_of(*manifest.dtype), file.where, name_of(file.dtype)));
      return;
    }
  }
}

/// Rejects tensors that also fit with the axis order of another tool, if nothing stated decides and that
/// order is likelier. Adds a note if either order is plausible.
void check_axes(const Manifest& manifest, const DumpOptions& options, const StoredLayers& stored,
                const TensorsFit& fits, std::vector<std::string>& notes) {
  constexpr Index kLargestHead = 1024, kSmallestHead = 16;
  const auto is_head_size = [](Index n) { return n % 8 == 0 && n >= kSmallestHead && n <= kLargestHead; };
  const DumpShape& shape = stored.shape;
  const bool stated = manifest.prompt_len || options.prompt_len;
  const bool in_files = stored.at(Tensor::q, 0).array.source->in_memory().empty();
  const auto refuse = [&](const std::string& found) {
    throw InputError(stored.at(Tensor::q, 0).array.where, "axes [heads, positions, d]", found);
  };
  if (shape.n_kv > shape.T && shape.T > 1 && !stated && fits_in(kPositionsFirst, stored.tensors, fits))
    refuse(
        fmt::format("{0} heads of {1} positions, or {0} positions of {1} heads: n_q_heads, total_len or "
                    "prompt_len in manifest.json says which",
                    shape.n_q, shape.T));
  if (shape.d <= shape.T || shape.T == 1 || !fits_in(kPositionsLast, stored.tensors, fits)) return;
  const std::string both =
      fmt::format("{0} channels and {1} positions, or {1} channels and {0} positions", shape.d, shape.T);
  if (in_files && !stated && is_head_size(shape.T) && !is_head_size(shape.d))
    refuse(both + ": head_dim, total_len or prompt_len in manifest.json says which");
  notes.push_back(
      fmt::format("{}: axes are taken as [heads, positions, d]; head_dim or total_len in "
                  "manifest.json would tell",
                  both));
}

/// Refuses a norm beside a gate: no model is known to have both, so that nothing says which comes first.
void check_output_norm(const Manifest& manifest, const StoredLayers& stored) {
  if (manifest.output_norm && !stored.by_layer[static_cast<int>(Tensor::gate)].empty())
    throw InputError(manifest.where + ": output_norm", "null beside gate", "a norm");
}

/// Checks that gradients are of rows that have a query, and of those that their name says.
void check_gradients(const Manifest& manifest, const StoredLayers& stored, const DumpShape& shape) {
  const auto check = [&](Tensor tensor, Index rows, Index most, const std::string& of) {
    if (stored.by_layer[static_cast<int>(tensor)].empty() || rows <= most) return;
    throw InputError(stored.at(tensor, 0).array.where, fmt::format("rows for at most {} {}", most, of),
                     fmt::format("{} rows", rows));
  };
  const Index decoded = shape.T - shape.window_end, prompt_queries = shape.window_end - shape.first_query();
  for (const Tensor tensor : {Tensor::g_future, Tensor::g_nll}) {
    check(tensor, shape.R_F, shape.T_q, "positions with a query");
    if (manifest.prompt_len) check(tensor, shape.R_F, decoded, "decoding steps");
  }
  check(Tensor::g_window, shape.R_W, std::max<Index>(prompt_queries, 0), "prompt positions with a query");
  const auto& stated = manifest.gradients;
  if (!stated || !stated->samples || shape.S == 0 || *stated->samples == shape.S) return;
  const Tensor sampled =
      stored.by_layer[static_cast<int>(Tensor::g_future)].empty() ? Tensor::g_window : Tensor::g_future;
  throw InputError(stored.at(sampled, 0).array.where,
                   fmt::format("{} samples, as the manifest's gradients say", *stated->samples),
                   fmt::format("{}", shape.S));
}

}  // namespace

std::vector<const AxisFacts*> axes_of(Tensor tensor) {
  std::vector<const AxisFacts*> axes;
  std::string_view rest = kTensors[tensor].axes;
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(", "), rest.size());
    axes.push_back(std::find_if(std::begin(kAxes), std::end(kAxes),
                                [&](const AxisFacts& axis) { return axis.name == rest.substr(0, comma); }));
    rest.remove_prefix(std::min(comma + 2, rest.size()));
  }
  return axes;
}

std::vector<Index> DumpShape::extents(Tensor tensor) const {
  std::vector<Index> found;
  for (const AxisFacts* axis : axes_of(tensor)) found.push_back(this->*axis->extent);
  return found;
}

Index DumpShape::heads(Tensor tensor) const {
  return kTensors[tensor].axis_count() == 1 ? 1 : extents(tensor).front();
}

Index DumpShape::head_size(Tensor tensor) const {
  Index size = 1;
  for (const Index extent : extents(tensor)) size *= extent;
  return size / heads(tensor);
}

std::string dump_name(const std::filesystem::path& dump) {
  std::filesystem::path name = std::filesystem::absolute(dump).lexically_normal();
  if (!name.has_filename()) name = name.parent_path();  // "dump/"
  std::error_code ignored;
  return std::filesystem::is_directory(dump, ignored) ? name.filename().string() : name.stem().string();
}

StoredLayers Dump::Impl::checked(std::vector<StoredTensor> tensors, const DumpOptions& options) const {
  StoredLayers found = arrange(std::move(tensors), folder.string());
  found.shape.l = prompt_length(manifest, options, found.shape);
  check_manifest(manifest, found.shape);
  check_output_norm(manifest, found);
  found.shape.window_end = prompt_length(manifest, {}, found.shape);
  check_gradients(manifest, found, found.shape);
  if (tokens) check_tokens(*tokens, (folder / "tokens.json").string(), found.shape.T);
  return found;
}

void Dump::Impl::take(const std::vector<StoredTensor>& tensors, bool has_manifest,
                      const DumpOptions& options) {
  const TensorsFit fits = [&](std::vector<StoredTensor> in_another_order) {
    try {
      checked(std::move(in_another_order), options);
      return true;
    } catch (const InputError&) {
      return false;
    }
  };
  try {
    stored = checked(tensors, options);
  } catch (const InputError& error) {
    throw InputError(error.what() + other_order_text(tensors, fits));
  }
  shape = stored.shape;
  for (const auto& tensor : stored.tensors) {
    const auto& header = tensor.array.header;
    files.push_back({tensor.array.where, tensor.name.tensor, tensor.name.layer, tensor.dtype, header.shape,
                     header.data_bytes()});
  }
  check_axes(manifest, options, stored, fits, notes);
  model = displayable(manifest.model ? *manifest.model : dump_name(folder), kLongestName);
  note_inferences(manifest, has_manifest, options, shape, notes);
  note_dtypes(files, manifest, notes);
  if (stored.by_layer[static_cast<int>(Tensor::wo)].empty() && !manifest.wo_note.empty())
    notes.push_back(fmt::format("there is no wo: {}", manifest.wo_note));
  if (stored.by_layer[static_cast<int>(Tensor::residual_norm)].empty() && !manifest.residual_note.empty())
    notes.push_back(fmt::format("there is no residual_norm: {}", manifest.residual_note));
  if (!stored.by_layer[static_cast<int>(Tensor::gate)].empty())
    notes.emplace_back(stored.by_layer[static_cast<int>(Tensor::wo)].empty()
                           ? "gate is not used: there is no wo behind it"
                           : "a gate stands between the heads' outputs and wo: expected_attention, which "
                             "has no row of it, takes the norms of values without either");
  if (manifest.output_norm)
    notes.emplace_back(
        stored.by_layer[static_cast<int>(Tensor::wo)].empty()
            ? "output_norm is not used: there is no wo behind it"
            : "a norm of all heads' outputs stands before wo: oracle_importance and "
              "expected_attention, which look at one head's, take the norms of values without either");
  for (Index layer = 0; layer < std::ssize(manifest.cache_of); ++layer)
    if (const Index of = manifest.cache_of[static_cast<std::size_t>(layer)]; of != layer)
      notes.push_back(fmt::format(
          "layer {} reads the cache of layer {}: one cache, compressed by what all its readers ask, "
          "whose bytes count once",
          layer, of));
  for (std::string& note : notes) note = displayable(note, kLongestNote);
  manifest.rope_note = displayable(manifest.rope_note, kLongestNote);
}

Dump Dump::of_memory(const std::vector<MemoryArray>& arrays, std::string_view manifest,
                     const DumpOptions& options, std::vector<Index> position) {
  auto impl = std::make_unique<Impl>();
  impl->folder = impl->name = options.name.empty() ? "arrays" : options.name;
  impl->manifest = parse_manifest(manifest, "layer");
  if (!impl->manifest.model) impl->manifest.model = impl->name;
  // The given prompt length also ends the rows of g_window (window_end). prompt_length() refuses one below 1
  // or above T.
  if (options.prompt_len.value_or(0).tokens >= 1) impl->manifest.prompt_len = options.prompt_len->tokens;
  if (impl->manifest.rope_note == "the manifest has no rope") impl->manifest.rope_note = "no rope is given";
  impl->take(tensors_in_memory(arrays), true, options);
  require_ascending(position, impl->shape);
  impl->position = std::move(position);
  return Dump(std::move(impl));
}

Dump Dump::open(const char* folder, const DumpOptions& options) {
  if (folder == nullptr) throw InputError("Dump::open", "the path of a dump", "a null pointer");
  return open(std::filesystem::path(folder), options);
}

Dump Dump::open(const std::filesystem::path& folder, const DumpOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->folder = folder;
  impl->name = options.name.empty() ? dump_name(folder) : options.name;
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(folder, ignored);
  const auto manifest_text = is_folder ? text_of(folder / "manifest.json", kMostManifest) : std::nullopt;
  if (manifest_text) {
    impl->manifest = parse_manifest(*manifest_text, (folder / "manifest.json").string());
  } else {
    impl->manifest.rope_note = "there is no manifest.json to tell the rotation";
  }
  if (impl->manifest.incomplete)
    throw InputError(
        folder.string(), "a whole dump",
        fmt::format("one whose capture was interrupted; kvcapture.py --check {} says which layers "
                    "are whole, and its command with --force captures it again",
                    folder.string()));
  if (const auto text = is_folder ? text_of(folder / "tokens.json", kMostTokens) : std::nullopt)
    impl->tokens = parse_tokens(*text, (folder / "tokens.json").string());
  std::vector<std::string> passed_over;
  auto found = find_arrays(folder, passed_over);
  if (found.empty() && passed_over.empty() && is_folder)
    throw InputError(folder.string(), "q, k and v for each layer", folder_kind(folder));
  for (const std::string& name : passed_over)
    impl->notes.push_back(name + " is not used: its name is none of a dump's tensors");

  try {
    std::vector<StoredTensor> tensors;
    for (auto& array : found) tensors.push_back(name_axes(std::move(array), impl->manifest.dtype));
    impl->take(tensors, manifest_text.has_value(), options);
  } catch (const InputError& error) {  // what was passed over may be what is missed
    std::vector<std::string> lines{error.what()};
    if (is_folder) lines.front() += missing_advice(folder);
    if (!passed_over.empty()) lines.push_back(not_used(passed_over));
    lines.insert(lines.end(), impl->manifest.notes.begin(), impl->manifest.notes.end());
    throw InputError(fmt::format("{}", fmt::join(lines, "; ")));
  }
  return Dump(std::move(impl));
}

Dump::Dump(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Dump::Dump(Dump&&) noexcept = default;
Dump& Dump::operator=(Dump&&) noexcept = default;
Dump::~Dump() = default;

const std::filesystem::path& Dump::folder() const { return impl_->folder; }
const std::string& Dump::name() const { return impl_->name; }
const std::string& Dump::model() const { return impl_->model; }
bool Dump::states_model() const { return impl_->manifest.model.has_value(); }
const DumpShape& Dump::shape() const { return impl_->shape; }
Index Dump::model_layer(Index layer) const {
  return impl_->manifest.layers.empty() ? layer : impl_->manifest.layers[static_cast<std::size_t>(layer)];
}
AttentionRule Dump::rule(Index layer) const { return attention_rule(impl_->manifest, impl_->shape, layer); }
std::optional<Rope> Dump::rope(Index layer) const { return layer_rope(impl_->manifest, impl_->shape, layer); }
const std::string& Dump::rope_note() const { return impl_->manifest.rope_note; }
std::optional<double> Dump::output_norm() const { return impl_->manifest.output_norm; }
double Dump::output_multiplier(Index layer) const {
  const std::vector<double>& all = impl_->manifest.output_multiplier;
  return all.empty() ? 1 : all[all.size() > 1 ? static_cast<std::size_t>(layer) : 0];
}
Index Dump::cache_of(Index layer) const {
  return impl_->manifest.cache_of.empty() ? layer : impl_->manifest.cache_of[static_cast<std::size_t>(layer)];
}
std::vector<Index> Dump::readers(Index layer) const {
  std::vector<Index> found;
  for (Index other = 0; other < shape().layers; ++other)
    if (cache_of(other) == cache_of(layer)) found.push_back(other);
  return found;
}
bool Dump::has(Tensor tensor) const { return !impl_->stored.by_layer[static_cast<int>(tensor)].empty(); }
const std::vector<Index>& Dump::position() const { return impl_->position; }
const std::vector<DumpFile>& Dump::files() const { return impl_->files; }
FileContents Dump::contents(std::size_t file) const {
  ContentsHash hash;
  impl_->stored.tensors[file].array.source->read_all(
      [&](std::span<const std::byte> bytes) { hash.add(bytes); });
  return hash.contents();
}
const std::optional<TokenLabels>& Dump::tokens() const { return impl_->tokens; }
const std::vector<std::string>& Dump::notes() const { return impl_->notes; }
const std::vector<std::string>& Dump::other_keys() const { return impl_->manifest.other_keys; }
const std::optional<GradientFacts>& Dump::gradients() const { return impl_->manifest.gradients; }

const std::optional<QuestionFacts>& Dump::question() const { return impl_->manifest.question; }

const std::vector<std::pair<std::string, Index>>& Dump::prompt_ends() const {
  return impl_->manifest.prompt_ends;
}

template <class T>
void Dump::read(Tensor tensor, Index layer, Index head, T* out, Index skipped) const {
  assert(has(tensor) && layer >= 0 && layer < impl_->shape.layers);
  const StoredTensor& stored = impl_->stored.at(tensor, layer);
  assert(head >= 0 && head < stored.heads);
  for (Index sample = 0; sample < stored.samples; ++sample) {
    const MatrixView matrix = stored.head(layer, head, sample).without_rows(skipped);
    if (const auto bad = read_matrix(stored.array, stored.dtype, matrix, out))
      impl_->refuse(stored, tensor, layer, head, sample, skipped * matrix.cols + *bad, std::isnan(out[*bad]));
    out += matrix.rows * matrix.cols;
  }
}

void Dump::Impl::refuse(const StoredTensor& stored, Tensor tensor, Index layer, Index head, Index sample,
                        Index bad, bool nan) const {
  const Index row = bad / stored.cols, col = bad % stored.cols;
  const bool kv = tensor == Tensor::k || tensor == Tensor::v, wo = tensor == Tensor::wo;
  throw InputError(
      stored.array.where, "finite values",
      fmt::format("{} at layer {}, {} head {}, {}{} {}, {} {}",
                  nan ? "NaN" : "infinity (or a value beyond float32)", layer, kv ? "KV" : "query", head,
                  kTensors[tensor].axis_count() == 4 ? fmt::format("sample {}, ", sample) : std::string(),
                  wo ? "row" : "position", row + shape.first_row(tensor), wo ? "column" : "channel", col));
}

template <class T>
const T* Dump::in_memory(Tensor tensor, Index layer, Index head, Index skipped, bool unchecked) const {
  assert(has(tensor) && layer >= 0 && layer < impl_->shape.layers);
  const StoredTensor& stored = impl_->stored.at(tensor, layer);
  const std::span<const std::byte> bytes = stored.array.source->in_memory();
  const MatrixView matrix = stored.head(layer, head).without_rows(skipped);
  const bool as_stored = stored.dtype == (sizeof(T) == 4 ? Dtype::f32 : Dtype::f64) && stored.samples == 1 &&
                         matrix.contiguous() && !stored.array.header.big_endian;
  if (bytes.empty() || !as_stored) return nullptr;
  const std::byte* const first =
      bytes.data() + stored.array.header.data_offset + static_cast<std::size_t>(matrix.begin) * sizeof(T);
  // As matrices are allocated: Eigen's sums begin where the alignment does.
  if (reinterpret_cast<std::uintptr_t>(first) % 16 != 0) return nullptr;
  const T* const numbers = reinterpret_cast<const T*>(first);
  if (unchecked) return numbers;
  if (const auto bad = first_not_finite(numbers, matrix.rows * matrix.cols))
    impl_->refuse(stored, tensor, layer, head, 0, skipped * matrix.cols + *bad, std::isnan(numbers[*bad]));
  return numbers;
}

std::optional<Dtype> Dump::stored_dtype(Tensor tensor, Index layer) const {
  assert(has(tensor) && layer >= 0 && layer < impl_->shape.layers);
  const StoredTensor& stored = impl_->stored.at(tensor, layer);
  const bool own_order = stored.array.header.big_endian == (std::endian::native == std::endian::big);
  const bool as_read = own_order && stored.head(layer, 0).contiguous() && stored.array.source->as_it_lies();
  if (!as_read || stored.dtype == Dtype::f64) return std::nullopt;
  return stored.dtype;
}

void Dump::read_stored(Tensor tensor, Index layer, Index head, std::byte* out, Index skipped) const {
  assert(stored_dtype(tensor, layer));
  const StoredTensor& stored = impl_->stored.at(tensor, layer);
  assert(head >= 0 && head < stored.heads && skipped >= 0 && skipped <= stored.rows);
  const std::size_t element = size_of(stored.dtype);
  const MatrixView matrix = stored.head(layer, head).without_rows(skipped);
  const std::uint64_t begin =
      stored.array.header.data_offset + static_cast<std::uint64_t>(matrix.begin) * element;
  const std::uint64_t end = begin + static_cast<std::uint64_t>(matrix.rows * matrix.cols) * element;
  stored.array.source->read(begin, end, false, [&](std::span<const std::byte> bytes) {
    out = std::copy(bytes.begin(), bytes.end(), out);
  });
}

template const float* Dump::in_memory<float>(Tensor, Index, Index, Index, bool) const;
template const double* Dump::in_memory<double>(Tensor, Index, Index, Index, bool) const;
template void Dump::read<float>(Tensor, Index, Index, float*, Index) const;
template void Dump::read<double>(Tensor, Index, Index, double*, Index) const;

}  // namespace kvreplay
