#include "analysis/run/fingerprint.hpp"

#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <set>
#include <string_view>
#include <vector>

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

/// FNV-1a, 64 bits.
struct Hash {
  std::uint64_t state = 0xcbf29ce484222325u;
  void add(std::string_view bytes) {
    for (const char c : bytes) {
      state ^= static_cast<unsigned char>(c);
      state *= 0x100000001b3u;
    }
    state ^= 0xff;  // so that "a" + "bc" is not "ab" + "c"
    state *= 0x100000001b3u;
  }
};

/// The file that holds an array: for an .npz the archive, without the member's name behind it.
fs::path file_of(const DumpFile& file) {
  const auto npz = file.where.find(".npz");
  return npz == std::string::npos ? fs::path(file.where) : fs::path(file.where.substr(0, npz + 4));
}

void add_ends(Hash& hash, const fs::path& path) {
  constexpr std::streamoff kEnd = 64 * 1024;
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) throw InputError(path.string(), "a readable file", "none");
  const std::streamoff size = in.tellg();
  hash.add(std::to_string(size));
  std::vector<char> bytes(std::min(size, kEnd));
  for (const std::streamoff at : {std::streamoff{0}, size - static_cast<std::streamoff>(bytes.size())}) {
    in.seekg(at);
    in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    hash.add({bytes.data(), bytes.size()});
  }
}

}  // namespace

std::string fingerprint(const Dump& dump) {
  Hash hash;
  if (const fs::path manifest = dump.folder() / "manifest.json"; fs::exists(manifest))
    add_ends(hash, manifest);
  for (const DumpFile& file : dump.files()) {
    hash.add(fs::path(file.where).lexically_relative(dump.folder()).generic_string());
    hash.add(name_of(file.dtype));
    for (const Index extent : file.shape) hash.add(std::to_string(extent));
  }
  return fmt::format("{:016x}", hash.state);
}

std::string layer_fingerprint(const Dump& dump, Index layer) {
  std::set<fs::path> paths;
  for (const DumpFile& file : dump.files())
    if (file.layer == layer || file.layer < 0) paths.insert(file_of(file));
  Hash hash;
  for (const fs::path& path : paths) add_ends(hash, path);
  return fmt::format("{:016x}", hash.state);
}

}  // namespace kvreplay
