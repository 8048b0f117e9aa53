#include "data/not_a_dump.hpp"

#include "data/console.hpp"
#include "data/stored_tensor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <system_error>
#include <vector>

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

/// A tensor format that kvreplay does not read.
struct OtherFormat {
  std::string_view ending, kind, reader;
};
constexpr OtherFormat kOtherFormats[] = {
    {".pt", "PyTorch", "torch.load()"},
    {".pth", "PyTorch", "torch.load()"},
    {".bin", "PyTorch", "torch.load()"},
    {".ckpt", "PyTorch", "torch.load()"},
    {".safetensors", "safetensors", "safetensors.torch.load_file()"},
    {".h5", "HDF5", "h5py.File()"},
    {".hdf5", "HDF5", "h5py.File()"},
    {".pkl", "pickle", "pickle.load()"},
};

const OtherFormat* format_of(const fs::path& file) {
  const std::string name = file.filename().string();
  const auto* const found = std::ranges::find_if(
      kOtherFormats, [&](const OtherFormat& format) { return name.ends_with(format.ending); });
  return found == std::end(kOtherFormats) ? nullptr : found;
}

std::string conversion(const OtherFormat& format) {
  return fmt::format("{} reads it, numpy.save(\"layer_00/q.npy\", q.float().numpy()) writes what is read",
                     format.reader);
}

/// The entries of a folder, sorted; empty if the folder is unreadable. Stops after the first 10,000 entries.
std::vector<fs::path> entries(const fs::path& folder) {
  constexpr std::size_t kMost = 10000;
  std::vector<fs::path> found;
  std::error_code error;
  for (auto at = fs::directory_iterator(folder, error);
       !error && at != fs::directory_iterator() && found.size() < kMost; at.increment(error))
    found.push_back(at->path());
  std::ranges::sort(found);
  return found;
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

bool looks_like_a_dump(const fs::path& folder) {
  return std::ranges::any_of(entries(folder), [](const fs::path& entry) {
    const std::string name = entry.filename().string();
    return name == "manifest.json" || layer_of_folder(name) || layer_of_folder(entry.stem().string()) ||
           parse_array_name(name);
  });
}

/// Dumps in the subfolders of a folder, and in those of subfolders that are not dumps.
std::vector<std::string> dumps_below(const fs::path& folder, int deep = 2) {
  std::vector<std::string> dumps;
  for (const fs::path& entry : entries(folder)) {
    if (!is_folder(entry)) continue;
    if (looks_like_a_dump(entry)) {
      dumps.push_back(entry.string());
    } else if (deep > 1) {
      const std::vector<std::string> below = dumps_below(entry, deep - 1);
      dumps.insert(dumps.end(), below.begin(), below.end());
    }
  }
  return dumps;
}

/// Files of other formats in a folder and its direct subfolders.
std::vector<fs::path> other_formats(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const fs::path& entry : entries(folder)) {
    if (format_of(entry) != nullptr) files.push_back(entry);
    if (!is_folder(entry)) continue;
    for (const fs::path& file : entries(entry))
      if (format_of(file) != nullptr) files.push_back(file);
  }
  return files;
}

}  // namespace

std::string file_kind(const fs::path& file) {
  if (const OtherFormat* const format = format_of(file))
    return fmt::format("a {} file: {}", format->kind, conversion(*format));
  if (file.extension() == ".npy") return "one array; a dump is the folder with q, k and v of every layer";
  if (file.extension() == ".gguf") return "a model: data/capture/kvcapture.py --gguf writes a dump of it";
  return "neither";
}

std::string folder_kind(const fs::path& folder) {
  if (const std::vector<std::string> dumps = dumps_below(folder); !dumps.empty())
    return fmt::format("a folder above {}: {}",
                       dumps.size() == 1 ? "a dump" : "dumps, which are named one by one",
                       first_names(dumps, 3));
  if (const std::vector<fs::path> files = other_formats(folder); !files.empty()) {
    const OtherFormat& format = *format_of(files.front());
    return fmt::format("{}{}: {}", files.front().string(),
                       files.size() == 1
                           ? fmt::format(", a {} file", format.kind)
                           : fmt::format(" and {} more {} files", files.size() - 1, format.kind),
                       conversion(format));
  }
  std::error_code ignored;
  if (fs::exists(folder / "summary.json", ignored))
    return "results; the dump that they are of is in run.json";
  return "no array with a name of a dump's";
}

std::string missing_advice(const fs::path& folder) {
  const fs::path whole = fs::absolute(folder).lexically_normal();
  const fs::path last = whole.has_filename() ? whole : whole.parent_path();  // "dump/layer_00/"
  if (layer_of_folder(last.filename().string()) && is_folder(last))
    return fmt::format("; {} is one layer of the dump {}", folder.string(), last.parent_path().string());
  for (const fs::path& file : other_formats(folder)) {
    const OtherFormat& format = *format_of(file);
    std::string name = file.filename().string();
    name.replace(name.size() - format.ending.size(), name.size(), ".npy");
    if (parse_array_name(name) || parse_array_name("layer_0/" + name))
      return fmt::format("; {} is a {} file: {}", file.string(), format.kind, conversion(format));
  }
  return "";
}

}  // namespace kvreplay
