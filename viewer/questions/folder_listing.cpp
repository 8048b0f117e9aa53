#include "viewer/questions/folder_listing.hpp"

#include <algorithm>
#include <cstdlib>
#include <system_error>

namespace kvreplay::viewer {

namespace fs = std::filesystem;

std::string_view name_of(PathKind kind) {
  switch (kind) {
    case PathKind::missing:
      return "missing";
    case PathKind::folder:
      return "";
    case PathKind::dump:
      return "dump";
    case PathKind::results:
      return "results";
  }
  return "";
}

PathKind path_kind(const fs::path& path) {
  std::error_code ignored;
  const auto has = [&](const char* name) { return fs::exists(path / name, ignored); };
  if (fs::is_directory(path, ignored)) {
    if (has("summary.json")) return PathKind::results;
    return has("manifest.json") || has("layer_00") ? PathKind::dump : PathKind::folder;
  }
  return fs::is_regular_file(path, ignored) && path.extension() == ".npz" ? PathKind::dump
                                                                          : PathKind::missing;
}

fs::path path_of(std::string_view typed) {
  const char* home = std::getenv("HOME");
  if (home != nullptr && (typed == "~" || typed.starts_with("~/")))
    return std::string(home) + std::string(typed.substr(1));
  return typed;
}

std::string_view folder_part(std::string_view typed) {
  const std::size_t slash = typed.rfind('/');
  return slash == std::string_view::npos ? std::string_view() : typed.substr(0, slash + 1);
}

FolderListing folder_listing(std::string_view typed) {
  const std::string_view before = folder_part(typed), begun = typed.substr(before.size());
  FolderListing listing;
  std::error_code error;
  fs::directory_iterator each(before.empty() ? fs::path(".") : path_of(before), error);
  listing.readable = !error;
  for (; !error && each != fs::directory_iterator(); each.increment(error)) {
    const std::string name = each->path().filename().string();
    if (!name.starts_with(begun) || (name.front() == '.' && !begun.starts_with('.'))) continue;
    if (const PathKind kind = path_kind(each->path()); kind != PathKind::missing)
      listing.entries.push_back({name, kind});
  }
  std::sort(listing.entries.begin(), listing.entries.end(), [](const FolderEntry& a, const FolderEntry& b) {
    const bool plain_a = a.kind == PathKind::folder, plain_b = b.kind == PathKind::folder;
    return plain_a != plain_b ? plain_b : a.name < b.name;
  });
  listing.more = listing.entries.size() > kMostListed;
  if (listing.more) listing.entries.resize(kMostListed);
  return listing;
}

std::string completed(std::string_view typed, const FolderListing& listing) {
  if (listing.entries.empty() || listing.more) return std::string(typed);
  std::string common = listing.entries.front().name;
  for (const FolderEntry& entry : listing.entries) {
    const auto differs = std::mismatch(common.begin(), common.end(), entry.name.begin(), entry.name.end());
    common.erase(differs.first, common.end());
  }
  const std::string_view before = folder_part(typed);
  if (before.size() + common.size() < typed.size()) return std::string(typed);
  std::string whole = std::string(before) + common;
  const bool only = listing.entries.size() == 1 && !common.ends_with(".npz");
  return only ? whole + "/" : whole;
}

fs::path find_sample(const std::vector<fs::path>& from) {
  for (fs::path folder : from)
    for (;; folder = folder.parent_path()) {
      for (const char* below : {"data/samples", "share/kvreplay/samples"})
        if (const fs::path sample = folder / below / "pystdlib-lm"; path_kind(sample) == PathKind::dump)
          return sample;
      if (folder.empty() || folder == folder.parent_path()) break;
    }
  return {};
}

}  // namespace kvreplay::viewer
