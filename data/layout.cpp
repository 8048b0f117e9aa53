#include "data/layout.hpp"

#include "data/byte_source.hpp"
#include "data/error.hpp"
#include "data/npz.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <memory>
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

/// "layer_00" -> 0
std::optional<Index> layer_of_folder(std::string_view name) {
  if (!take(name, "layer_")) return std::nullopt;
  const auto layer = take_number(name);
  return name.empty() ? layer : std::nullopt;
}

class Finder {
 public:
  Finder(std::vector<FoundArray>& arrays, std::vector<std::string>& notes) : arrays_(arrays), notes_(notes) {}

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
          notes_.push_back(entry.string() + " is not used: its name is none of a dump's tensors");
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
        notes_.push_back(where + " is not used: its name is none of a dump's tensors");
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
  std::vector<std::string>& notes_;
};

}  // namespace

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

std::vector<FoundArray> find_arrays(const std::filesystem::path& dump, std::vector<std::string>& notes) {
  std::error_code error;
  const auto status = std::filesystem::status(dump, error);
  std::vector<FoundArray> arrays;
  Finder finder(arrays, notes);
  if (std::filesystem::is_directory(status)) {
    finder.folder(dump, "");
  } else if (std::filesystem::is_regular_file(status) && dump.extension() == ".npz") {
    finder.archive(dump, "");
  } else if (std::filesystem::exists(status)) {
    throw InputError(dump.string(), "a dump folder or an .npz file", "neither");
  } else {
    throw InputError(dump.string(), "a dump folder",
                     error && status.type() != std::filesystem::file_type::not_found
                         ? error.message()
                         : "no such file or folder");
  }
  return arrays;
}

}  // namespace kvreplay
