#include "data/capture_progress.hpp"

#include "data/console.hpp"
#include "data/error.hpp"
#include "data/json_fields.hpp"
#include "data/manifest.hpp"
#include "data/npy/mapped_file.hpp"
#include "data/npy/npy_array.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <system_error>

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

/// A `.npy` [heads, rows, cols] in C order whose end may be missing.
class GrowingArray {
 public:
  explicit GrowingArray(const fs::path& path) : source_(path) {
    const std::string where = path.string();
    header_ = parse_npy_declaration(read_npy_header(source_, where), where);
    if (header_.count > std::numeric_limits<Index>::max() / 8)
      throw InputError(where, "a shape that fits on a disk", "shape " + shape_text(header_.shape));
    if (header_.shape.size() != 3 || header_.fortran_order)
      throw InputError(where, "[heads, rows, channels] in C order", "shape " + shape_text(header_.shape));
  }

  Index rows() const { return header_.shape[1]; }
  std::uint64_t missing_bytes() const {
    const std::uint64_t declared = header_.data_offset + header_.data_bytes();
    return declared - std::min(declared, source_.size());
  }

  /// How many rows hold a number in some head; they are written in order.
  Index written() const {
    Index low = 0, high = complete_rows();
    while (low < high) {
      const Index middle = low + (high - low) / 2;
      if (any_nonzero(middle))
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }

 private:
  std::uint64_t row_bytes() const {
    return static_cast<std::uint64_t>(header_.shape[2]) * header_.element_size();
  }

  /// Rows that the file has of every head.
  Index complete_rows() const {
    const std::uint64_t last_head =
        header_.data_offset + static_cast<std::uint64_t>((header_.shape[0] - 1) * rows()) * row_bytes();
    if (source_.size() <= last_head) return 0;
    return std::min(rows(), static_cast<Index>((source_.size() - last_head) / row_bytes()));
  }

  bool any_nonzero(Index row) const {
    bool found = false;
    for (Index head = 0; head < header_.shape[0] && !found; ++head) {
      const std::uint64_t begin =
          header_.data_offset + static_cast<std::uint64_t>(head * rows() + row) * row_bytes();
      source_.read(begin, begin + row_bytes(), false, [&](std::span<const std::byte> bytes) {
        found =
            found || std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b != std::byte{}; });
      });
    }
    return found;
  }

  FileSource source_;
  NpyHeader header_;
};

CaptureProgress::Layer layer_progress(const fs::path& folder, const std::optional<Index>& total_len) {
  CaptureProgress::Layer layer;
  layer.positions = total_len.value_or(0);
  Index written = std::numeric_limits<Index>::max();
  const auto fault = [&](const std::string& what) {
    if (layer.fault.empty()) layer.fault = what;
  };
  for (const char* name : {"k.npy", "v.npy", "q.npy", "o.npy"}) {  // q and o may begin late: T comes first
    std::error_code ignored;
    if (!fs::exists(folder / name, ignored)) {
      fault(fmt::format("{} is missing", name));
      written = 0;
      continue;
    }
    try {
      const GrowingArray array(folder / name);
      if (layer.positions == 0) layer.positions = array.rows();
      const Index first = std::max<Index>(layer.positions - array.rows(), 0);
      written = std::min(written, first + array.written());
      if (const auto missing = array.missing_bytes(); missing > 0)
        fault(fmt::format("{} is cut short by {} bytes", name, missing));
    } catch (const InputError& error) {
      fault(error.what());
      written = 0;
    }
  }
  layer.written = std::min(written, layer.positions);
  return layer;
}

}  // namespace

Index CaptureProgress::whole_layers() const {
  return std::count_if(layers.begin(), layers.end(), [](const Layer& layer) { return layer.whole(); });
}

std::optional<CaptureProgress> capture_progress(const fs::path& dump) {
  constexpr Index kMostLayers = 100'000;
  const fs::path path = dump / "manifest.json";
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return std::nullopt;
  const Manifest manifest = parse_manifest(file_text(path), path.string());
  if (!manifest.incomplete) return std::nullopt;

  CaptureProgress progress;
  progress.model = displayable(manifest.model.value_or(""), 200);
  const auto folder = [&](Index layer) { return dump / fmt::format("layer_{:02}", layer); };
  Index layers = manifest.n_layers.value_or(0);
  if (!manifest.n_layers)
    while (layers < kMostLayers && fs::exists(folder(layers), ignored)) ++layers;
  if (layers > kMostLayers)
    throw InputError(path.string() + ": n_layers", fmt::format("at most {}", kMostLayers),
                     std::to_string(layers));
  for (Index layer = 0; layer < layers; ++layer)
    progress.layers.push_back(layer_progress(folder(layer), manifest.total_len));
  return progress;
}

}  // namespace kvreplay
