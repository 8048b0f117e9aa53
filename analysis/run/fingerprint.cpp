#include "analysis/run/fingerprint.hpp"

#include "data/file_contents.hpp"
#include "data/mapped_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <vector>

namespace kvreplay {
namespace {

std::string hash_of(const std::string& text) {
  return fmt::format("{:016x}", contents_of(std::as_bytes(std::span(text))).xxh3);
}

std::string make_of(const DumpFile& file) {
  return fmt::format("{} {} [{}]\n", name_of(file.tensor), name_of(file.dtype), fmt::join(file.shape, ", "));
}

}  // namespace

std::string fingerprint(const Dump& dump) {
  namespace fs = std::filesystem;
  std::string all;
  if (const fs::path manifest = dump.folder() / "manifest.json"; fs::exists(manifest))
    all += file_text(manifest) + '\n';
  for (const DumpFile& file : dump.files())
    all += fs::path(file.where).lexically_relative(dump.folder()).generic_string() + '\n' + make_of(file);
  return hash_of(all);
}

std::map<Index, std::string> layer_fingerprints(const Dump& dump, std::span<const Index> layers,
                                                Workers& workers) {
  const std::vector<DumpFile>& files = dump.files();
  std::vector<std::size_t> needed;
  for (std::size_t i = 0; i < files.size(); ++i)
    if (files[i].layer < 0 || std::find(layers.begin(), layers.end(), files[i].layer) != layers.end())
      needed.push_back(i);
  std::vector<std::uint64_t> hashes(files.size());
  workers.parallel_for(std::ssize(needed),
                       [&](Index n) { hashes[needed[n]] = dump.contents(needed[n]).xxh3; });
  std::map<Index, std::string> fingerprints;
  for (const Index layer : layers) {
    std::string all;
    for (const std::size_t i : needed)
      if (files[i].layer < 0 || files[i].layer == layer)
        all += fmt::format("{}{:016x}\n", make_of(files[i]), hashes[i]);
    fingerprints[layer] = hash_of(all);
  }
  return fingerprints;
}

}  // namespace kvreplay
