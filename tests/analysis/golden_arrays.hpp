#pragma once

#include "data/npz.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/places.hpp"

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

// Arrays of tests/golden/kvpress.

namespace kvreplay::test {

/// All of `name`.npz, by their names in it.
inline std::map<std::string, Npy> golden_arrays(const std::string& name) {
  const NpzArchive archive =
      NpzArchive::open(source_dir().string() + "/tests/golden/kvpress/" + name + ".npz");
  std::map<std::string, Npy> arrays;
  for (std::size_t m = 0; m < archive.members().size(); ++m) {
    const auto source = archive.source(m);
    std::string bytes;
    source->read(0, source->size(), true, [&](std::span<const std::byte> piece) {
      bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    });
    arrays[archive.members()[m].name] = npy_of(bytes);
  }
  return arrays;
}

/// np.packbits' opposite, of whole bytes.
inline std::vector<bool> unpacked(const Npy& bits) {
  std::vector<bool> all;
  for (const char c : bits.data)
    for (int b = 7; b >= 0; --b) all.push_back((static_cast<unsigned char>(c) >> b & 1) != 0);
  return all;
}

}  // namespace kvreplay::test
