#include "tests/analysis/kvreplay_program.hpp"
#include "tests/support/catch.hpp"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <string>

using namespace kvreplay;
using namespace kvreplay::test;

TEST_CASE("the sample dump verifies", "[verify][cli]") {
  const ProcessResult result =
      run_kvreplay({"verify", sample_dump(), "--tokens", "8", "--layers", "0,5", "--json"});
  INFO(result.err);
  REQUIRE(result.code == 0);
  const auto json = nlohmann::json::parse(result.out);
  CHECK(json["ok"] == true);
  REQUIRE(json["checks"].size() == 5);
  const char* names[] = {"closed forms", "float32 backend", "kept sets", "channels, caches", "replay"};
  for (std::size_t c = 0; c < 5; ++c) {
    const auto& check = json["checks"][c];
    CHECK(check["name"] == names[c]);
    CHECK(check["ok"] == true);
    CHECK(check["skipped"] == false);
  }
  CHECK(json["checks"][0]["worst_of_largest"] < 1e-9);
  CHECK(json["checks"][2]["worst_f64"] < 1e-9);
  CHECK(json["checks"][2]["worst_f32"] < 1e-4);
  CHECK(json["checks"][2]["heads"] == 4);
  CHECK(json["checks"][4]["worst_relative_l2"] < 2e-3);
  CHECK(json["approximations"].size() == 94);
}

TEST_CASE("an output that the inputs do not explain fails, and is named", "[verify][cli]") {
  const TempDir temp;
  const std::string dump = temp / "dump", output = dump + "/layer_01/o.npy";
  std::filesystem::copy(sample_dump(), dump, std::filesystem::copy_options::recursive);
  std::string bytes = file_text(output);
  const std::size_t head = (bytes.size() - 128) / 4;
  for (std::size_t at = 128 + 2 * head; at < 128 + 3 * head; at += 2)
    bytes[at + 1] = static_cast<char>(bytes[at + 1] ^ 0x80);  // the third head's sign
  std::ofstream(output, std::ios::binary) << bytes;
  const ProcessResult result = run_kvreplay({"verify", dump, "--tokens", "2", "--layers", "0,1"});
  CHECK(result.code == 1);
  CHECK(contains(result.out, "FAILED"));
  CHECK(lines(result.err) == 1);
  CHECK(contains(result.err, "replay: layer 1 query head 2"));
}

TEST_CASE("checks that a dump has no data for are left out aloud", "[verify][cli]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  std::filesystem::copy(sample_dump(), dump, std::filesystem::copy_options::recursive);
  for (int layer = 0; layer < 6; ++layer)
    std::filesystem::remove(dump + "/layer_0" + std::to_string(layer) + "/o.npy");
  const ProcessResult result =
      run_kvreplay({"verify", dump, "--tokens", "2", "--layers", "3", "--precision", "f64"});
  CHECK(result.code == 0);
  CHECK(contains(result.out, "left out: the dump has no o.npy"));
  CHECK(contains(result.out, "left out: not asked for"));
}
