#include "analysis/results/layer_record.hpp"

#include "analysis/results/text_file.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMostBytes = std::uintmax_t{1} << 40;

std::uint64_t hash_of(std::string_view text) { return contents_of(std::as_bytes(std::span(text))).xxh3; }

void append(std::string& bytes, std::uint64_t number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
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
