#pragma once

#include "data/atomic_file.hpp"
#include "data/dump.hpp"
#include "data/error.hpp"
#include "data/json_fields.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {

/// A file of a result folder as it was written.
struct RecordedFile {
  std::string name;  ///< below the folder, with slashes
  FileContents contents;
};

inline constexpr std::uintmax_t kMostRecord = std::uintmax_t{1} << 28;  ///< bytes
inline constexpr const char* kHashOfFiles = "files_xxh3";               ///< of files.csv, in summary.json
std::string hash_of_files(std::string_view record);

/// A record as the text of a CSV, "name,bytes,xxh3", the hash in 16 hexadecimal digits.
std::string text_of(std::span<const RecordedFile> files);
/// Throws InputError, with `where` it comes from, unless it is one, of names that stay below a folder.
std::vector<RecordedFile> recorded_files(std::string_view text, const std::filesystem::path& where);
/// Files that the files.csv of finished results names. Throws InputError where it is damaged, or is not the
/// one that the results' summary.json says it was written with.
std::vector<RecordedFile> files_of_results(const std::filesystem::path& folder,
                                           const nlohmann::ordered_json& summary = {});

/// All of a file. Throws InputError where it is not there, no regular file (a symbolic link is none), or
/// holds something else than was written.
std::string read_recorded(const std::filesystem::path& folder, const RecordedFile& file);

/// Removes the regular files of these names, what was cut short beside them and at the top, and folders that
/// are empty then. Whatever else is below `folder` stays, and no symbolic link there is followed. Throws
/// InputError where a file cannot be removed.
void remove_files(const std::filesystem::path& folder, std::span<const std::string> names);

inline constexpr std::size_t kFingerprintDigits = 16;

/// The stored record of a finished layer: the figures that tables are made of, and the files that were
/// written. Bytes: [fingerprint][figures, float64][files, as a CSV][the CSV's size][XXH3 of all before].
struct LayerRecord {
  std::string fingerprint;  ///< of the layer in the dump, kFingerprintDigits of it
  std::vector<double> figures;
  std::vector<RecordedFile> files;
};

std::string bytes_of(const LayerRecord& record);

/// The layer was computed from another dump.
class OtherDump : public InputError {
 public:
  OtherDump(const std::filesystem::path& folder, Index layer);
};

/// The record of this name below `folder`. Throws InputError where it is not as it was written, OtherDump
/// where the layer's fingerprint is not `fingerprint`, if that is known.
LayerRecord read_layer_record(const std::filesystem::path& folder, const std::filesystem::path& name,
                              Index layer, const std::optional<std::string>& fingerprint);

}  // namespace kvreplay
