#pragma once

#include "tests/data/expect_error.hpp"
#include "tests/data/npy_builder.hpp"
#include "tests/support/places.hpp"
#include "tests/support/read_file.hpp"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace kvreplay::test {

/// An entry of tests/hostile/broken_inputs.json, which says how an input is made that is none, and parts of
/// the line that refuses it.
struct BrokenInput {
  std::string name, bytes;
  std::vector<std::string> line;
};

/// One byte a character, as Latin-1 has it.
inline std::string latin1(const std::string& utf8) {
  std::string bytes;
  for (std::size_t i = 0; i < utf8.size(); ++i) {
    const auto byte = static_cast<unsigned char>(utf8[i]);
    bytes += byte < 0x80 ? utf8[i] : static_cast<char>((byte & 3) << 6 | (utf8[++i] & 0x3f));
  }
  return bytes;
}

inline std::string made_by(const nlohmann::json& entry) {
  for (const char* whole : {"text", "bytes"})
    if (entry.contains(whole)) return latin1(entry[whole]);
  NpyBuilder npy;
  npy.version = entry.value("version", 1);
  npy.data = std::string(entry.value("behind", std::size_t{24}), '\0');
  std::string bytes = npy.with_dict(latin1(entry.value("header", npy.dict())));
  if (entry.contains("length"))
    for (std::size_t i = 0; i < 4; ++i)
      bytes[8 + i] = static_cast<char>(entry["length"].get<std::uint32_t>() >> (8 * i) & 0xff);
  return bytes.substr(0, entry.value("cut", bytes.size()));
}

/// The list of one kind: npy, of [2, 3] float32 where its header says so; manifest, of a dump of 2 layers, 4
/// query heads on 2 KV heads, 8 channels and 48 positions.
inline std::vector<BrokenInput> broken_inputs(const std::string& kind) {
  const auto list = nlohmann::json::parse(read_file(source_dir() / "tests/hostile/broken_inputs.json"));
  std::vector<BrokenInput> inputs;
  for (const nlohmann::json& entry : list.at(kind))
    inputs.push_back({entry.at("name"), made_by(entry), entry.at("line")});
  return inputs;
}

/// Each is refused by read(bytes), in a line that begins with the file's name.
template <class Read>
void check_broken_inputs(const std::string& kind, const std::string& file, const Read& read) {
  const std::vector<BrokenInput> inputs = broken_inputs(kind);
  REQUIRE(inputs.size() > 30);
  for (const BrokenInput& input : inputs) {
    INFO(kind << ": " << input.name);
    std::vector<std::string> line = input.line;
    line.insert(line.begin(), file + ": ");
    expect_error([&] { read(input.bytes); }, line);
  }
}

}  // namespace kvreplay::test
