#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace kvreplay::test {

/// All bytes of a file; empty where there is none.
inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace kvreplay::test
