#include "analysis/run/run.hpp"
#include "data/synth.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace kvreplay {

TEST_CASE("a layer's fingerprint is of every byte that its arrays hold, and of no other layer's", "[run]") {
  const test::TempDir dir;
  SynthOptions options;
  options.prompt = 4096;
  write_synthetic_dump(dir / "d", options);
  const std::filesystem::path k = dir / "d/layer_01/k.npy";
  Workers workers(2);
  const auto fingerprints = [&] {
    return layer_fingerprints(Dump::open(dir / "d"), std::vector<Index>{0, 1}, workers);
  };
  const auto flip = [&](std::streamoff at) {
    std::fstream file(k, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(at);
    const int byte = file.get();
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 1));
  };
  const std::map<Index, std::string> before = fingerprints();
  CHECK(before.at(0) != before.at(1));
  const auto size = static_cast<std::streamoff>(std::filesystem::file_size(k));
  REQUIRE(size > 1'000'000);
  for (const std::streamoff at : {std::streamoff{200}, size / 2, size - 1}) {
    CAPTURE(at);
    flip(at);
    const std::map<Index, std::string> changed = fingerprints();
    CHECK(changed.at(0) == before.at(0));
    CHECK(changed.at(1) != before.at(1));
    flip(at);
    CHECK(fingerprints() == before);
  }
}

}  // namespace kvreplay
