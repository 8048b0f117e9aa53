#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

// Completing a path that is typed: what lies in its folder, and which of that can be opened.

namespace kvreplay::viewer {

/// Kind of a path; files are not read.
enum class PathKind {
  missing,
  folder,   ///< any other
  dump,     ///< a folder with manifest.json or layers, or a .npz
  results,  ///< a folder with summary.json
};
/// "dump"; empty for a folder.
std::string_view name_of(PathKind kind);
PathKind path_kind(const std::filesystem::path& path);

/// "~/x" in the user's home, all else as it is.
std::filesystem::path path_of(std::string_view typed);

struct FolderEntry {
  std::string name;
  PathKind kind = PathKind::folder;
};
/// Entries that begin with the last part of the typed path, in the folder that the rest names. Only folders
/// and .npz are listed: dumps and results first, then by name. Hidden entries are listed only if a dot is
/// typed.
struct FolderListing {
  std::vector<FolderEntry> entries;
  bool more = false;  ///< there are more than kMostListed
  bool readable = true;
};
inline constexpr std::size_t kMostListed = 200;
FolderListing folder_listing(std::string_view typed);

/// Typed text up to its last "/", to be put before an entry's name.
std::string_view folder_part(std::string_view typed);
/// Typed text extended by the part that all entries have in common. If the only entry is a folder, a "/" is
/// appended.
std::string completed(std::string_view typed, const FolderListing& listing);

/// Path of the sample dump, searched for in these folders and the folders above them; empty if it is not
/// found.
std::filesystem::path find_sample(const std::vector<std::filesystem::path>& from);

}  // namespace kvreplay::viewer
