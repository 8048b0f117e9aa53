#pragma once

#include "tests/analysis/result_files.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer_gl/dashboard.hpp"

#include <filesystem>

namespace kvreplay::test {

/// A copy of the sample with the keys of layer 3 halved: its path.
inline std::filesystem::path halved_keys(const TempDir& folder) {
  namespace fs = std::filesystem;
  const fs::path to = fs::path(folder / "halved");
  fs::copy(kSample, to, fs::copy_options::recursive);
  Npy values = npy_file(to / "layer_03/k.npy");
  REQUIRE(values.descr == "<f2");
  for (std::size_t i = 1; i < values.data.size(); i += 2) {
    auto high = static_cast<unsigned char>(values.data[i]);
    if ((high & 0x7C) != 0) high = static_cast<unsigned char>(high - 4);  // one less in the exponent
    values.data[i] = static_cast<char>(high);
  }
  write_file(to / "layer_03/k.npy", values.bytes());
  return to;
}

}  // namespace kvreplay::test
