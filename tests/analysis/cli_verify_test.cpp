#include "analysis/results/csv.hpp"
#include "data/synth.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/data/zip_file.hpp"
#include "tests/support/catch.hpp"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

TEST_CASE("the sample dump verifies", "[verify][cli]") {
  const ProcessResult result =
      succeed({"verify", sample_dump(), "--tokens", "8", "--layers", "0,5", "--json"});
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

TEST_CASE("verify says a page, its table and its JSON say the rest, on any number of threads alike",
          "[verify][cli]") {
  const TempDir temp;
  const std::string csv = temp / "made" / "table.csv";
  const ProcessResult page =
      succeed({"verify", sample_dump(), "--tokens", "8", "--threads", "3", "--csv", csv});
  CHECK(lines(page.out) <= 40);
  CHECK(contains(page.out, "--csv FILE.csv or --json"));
  CHECK(contains(page.out, "  score              "));
  std::istringstream text(page.out);
  for (std::string line; std::getline(text, line);) CHECK(line.size() <= 160);

  const auto json_with = [](const char* threads) {
    return run_kvreplay({"verify", sample_dump(), "--tokens", "8", "--threads", threads, "--json"}).out;
  };
  const std::string json_text = json_with("1");
  CHECK(json_text == json_with("3"));
  const auto pairs = nlohmann::json::parse(json_text)["approximations"];
  CsvReader table(csv);
  std::vector<std::string> row;
  for (const auto& pair : pairs) {
    REQUIRE(table.next(row));
    for (const std::string& column : table.columns()) {
      const std::string& field = row[table.need(column)];
      const auto& lowest = pair["worst_heads"][0];
      INFO(pair["score"] << " " << pair["reference"] << " " << column);
      if (column == "score" || column == "reference" || column == "rows")
        CHECK(field == pair[column]);
      else if (column == "lowest_spearman")
        CHECK(std::stod(field) == lowest["spearman"]);
      else if (column == "layer" || column == "kv_head")
        CHECK(std::stoi(field) == lowest[column]);
      else if (pair[column].is_null())
        CHECK(field.empty());
      else
        CHECK(std::stod(field) == pair[column]);
    }
  }
  CHECK_FALSE(table.next(row));
}

TEST_CASE("a table that cannot be written is refused before anything is computed", "[verify][cli]") {
  const TempDir temp;
  std::ofstream(temp / "file") << "x";
  for (const auto& [name, why] : {std::pair{temp / "table.txt", "expected a file that ends in .csv, found"},
                                  {temp / "file/table.csv", "file/table.csv"}}) {
    const ProcessResult result = run_kvreplay({"verify", sample_dump(), "--csv", name});
    CHECK(result.code == 2);
    CHECK(result.out.empty());
    CHECK(lines(result.err) == 1);
    CHECK(contains(result.err, why));
  }
}

TEST_CASE("verify compares an archive with its checksums, of what it computes nothing of too",
          "[verify][cli]") {
  const TempDir temp;
  const std::filesystem::path dump = temp / "dump", archive = dump / "layer_00.npz";
  write_synthetic_dump(dump, {.layers = 1, .head_dim = 8, .prompt = 61, .decode = 9});
  std::vector<std::pair<std::string, std::string>> members;
  for (const char* name : {"q.npy", "k.npy", "v.npy", "o.npy", "wo.npy"})
    members.emplace_back(name, file_text(dump / "layer_00" / name));
  std::filesystem::remove_all(dump / "layer_00");
  write_zip(archive, members, false);
  const auto verified = [&] { return run_kvreplay({"verify", dump, "--tokens", "2", "--quiet"}); };
  REQUIRE(verified().code == 0);
  std::string bytes = file_text(archive);
  const std::size_t data = bytes.find(members.back().second);
  REQUIRE(data != std::string::npos);
  bytes[data + 200] = static_cast<char>(bytes[data + 200] ^ 1);
  std::ofstream(archive, std::ios::binary) << bytes;
  const ProcessResult result = verified();
  CHECK(result.code == 2);
  CHECK(lines(result.err) == 1);
  CHECK(contains(result.err, "wo.npy: expected bytes that agree with the archive's checksum"));
}
