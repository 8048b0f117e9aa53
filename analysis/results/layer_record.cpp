#include "analysis/results/layer_record.hpp"

#include "analysis/results/text_file.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <fstream>

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMostBytes = std::uintmax_t{1} << 40;

std::uint64_t hash_of(std::string_view text) { return contents_of(std::as_bytes(std::span(text))).xxh3; }

void append(std::string& bytes, std::uint64_t number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

/// Whether a list of files stands where the end of the file says. What else lies in a record's place may be
/// of any size and is not worth reading.
bool ends_like_a_record(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::uint64_t csv = 0;
  in.seekg(-2 * std::streamoff{sizeof csv}, std::ios::end);
  const std::streamoff end = in.tellg();
  const std::string begin = text_of({});
  if (!in.read(reinterpret_cast<char*>(&csv), sizeof csv)) return false;
  if (csv < begin.size() || csv > static_cast<std::uint64_t>(end)) return false;
  std::string found(begin.size(), '\0');
  in.seekg(end - static_cast<std::streamoff>(csv));
  return in.read(found.data(), std::ssize(found)) && found == begin;
}

}  // namespace

OtherDump::OtherDump(const fs::path& folder, Index layer)
    : InputError(
          fmt::format("{}: layer {} of the dump was another when it was computed", folder.string(), layer)) {}

std::string bytes_of(const LayerRecord& record) {
  std::string bytes = record.fingerprint;
  bytes.append(reinterpret_cast<const char*>(record.figures.data()), record.figures.size() * sizeof(double));
  const std::string csv = text_of(record.files);
  bytes += csv;
  append(bytes, csv.size());
  append(bytes, hash_of(bytes));
  return bytes;
}

LayerRecord read_layer_record(const fs::path& folder, const fs::path& name, Index layer,
                              std::string_view fingerprint) {
  const fs::path path = folder / name;
  const auto unlike = [&](const char* found) {
    return InputError(path.string(), "the record of a finished layer", found);
  };
  if (!fs::is_regular_file(fs::symlink_status(path))) throw unlike("no file");
  if (!ends_like_a_record(path)) throw unlike("a damaged file");
  const std::string all = file_text(path, kMostBytes);
  std::string_view bytes = all;
  std::uint64_t numbers[2] = {};
  if (bytes.size() < sizeof numbers) throw unlike("a damaged file");
  std::memcpy(numbers, bytes.data() + bytes.size() - sizeof numbers, sizeof numbers);
  const auto [csv, hash] = numbers;
  if (hash_of(bytes.substr(0, bytes.size() - sizeof hash)) != hash) throw unlike("a damaged file");
  if (!bytes.starts_with(fingerprint)) throw OtherDump(folder, layer);
  bytes.remove_suffix(sizeof numbers);
  bytes.remove_prefix(fingerprint.size());
  if (csv > bytes.size() || (bytes.size() - csv) % sizeof(double) != 0) throw unlike("a damaged file");
  LayerRecord record{std::string(fingerprint), {}, recorded_files(bytes.substr(bytes.size() - csv), path)};
  record.figures.resize((bytes.size() - csv) / sizeof(double));
  std::memcpy(record.figures.data(), bytes.data(), record.figures.size() * sizeof(double));
  return record;
}

}  // namespace kvreplay
