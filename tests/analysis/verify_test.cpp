#include "analysis/verify/verify.hpp"

#include "tests/analysis/kvreplay_program.hpp"
#include "tests/support/catch.hpp"

#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

/// One head of three tokens against 10, 1, 1e-8.
ValueDistance compared(const std::vector<double>& values, kvreplay::Tolerance tolerance) {
  ValueDistance comparison(tolerance);
  comparison.add(3, 1, TokenMetric::exact_key, {0, 7, 9}, values, {10, 1, 1e-8});
  return comparison;
}

}  // namespace

TEST_CASE("the sample holds the first, the last and the wanted tokens", "[verify]") {
  CHECK(sampled_tokens(5, 0, {}) == std::vector<Index>{0, 1, 2, 3, 4});
  CHECK(sampled_tokens(5, 9, {}) == std::vector<Index>{0, 1, 2, 3, 4});
  CHECK(sampled_tokens(100, 1, {50}) == std::vector<Index>{0});
  CHECK(sampled_tokens(100, 3, {50, 50}) == std::vector<Index>{0, 50, 99});
  for (const Index count : {2, 10, 64, 99}) {
    const auto tokens = sampled_tokens(100, count, {41, 42});
    CHECK(std::ssize(tokens) == count);
    CHECK(std::is_sorted(tokens.begin(), tokens.end()));
  }
}

TEST_CASE("a comparison passes within both tolerances only", "[verify]") {
  const kvreplay::Tolerance t = {1e-3, 1e-2, 1e-6, 0};
  CHECK(compared({10, 1, 1e-8}, t).failures().empty());
  CHECK(compared({10.009, 1.009, 1e-4}, t).failures().empty());  // the last is below the floor
  CHECK(compared({10.02, 1, 1e-8}, t).failures().size() == 1);   // 2e-3 of the largest
  const ValueDistance relative = compared({10, 1.011, 1e-8}, {1, 1e-2, 1e-6, 0});
  REQUIRE(relative.failures().size() == 1);
  CHECK(relative.worst_relative() == Approx(0.011));
  CHECK(contains(relative.failures()[0], "layer 3 KV head 1 token 7 metric exact_key"));
  CHECK(compared({11, 2, 1e-8}, t).failures().size() ==
        1);  // a line for a head and metric, not for each token
}

TEST_CASE("nothing that is no number passes a comparison", "[verify]") {
  const ValueDistance comparison = compared({10, std::nan(""), 1e-8}, {1e300, 1e300, 0, 0});
  CHECK(comparison.failures().size() == 1);
  CHECK(std::isnan(comparison.worst_of_largest()));
  ValueDistance zeros({1e-3, 1e-3, 0, 0});
  zeros.add(0, 0, TokenMetric::attn, {0}, {0}, {0});
  CHECK(zeros.failures().empty());
  zeros.add(0, 0, TokenMetric::attn, {0}, {1e-300}, {0});
  CHECK(zeros.failures().size() == 1);
}

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
