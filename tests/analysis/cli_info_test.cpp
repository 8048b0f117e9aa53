#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"

#include <nlohmann/json.hpp>

using namespace kvreplay::test;
namespace fs = std::filesystem;

TEST_CASE("info tells a second reading", "[cli]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_small_dump(dump);
  CHECK_FALSE(contains(run_kvreplay({"info", dump}).out, "read again"));
  CHECK_FALSE(contains(run_kvreplay({"info", dump}).out, "q_ref"));
  add_second_reading(dump, 12);
  const ProcessResult info = run_kvreplay({"info", dump, "--values"});
  CHECK(info.code == 0);
  CHECK(contains(info.out, "\nread again  12 queries on positions 61-72\n"));
  CHECK(contains(info.out, "[4, 12, 8]"));
  CHECK_FALSE(contains(info.out, "kvzip,"));
  CHECK(contains(info.out, "kvzip_plus (the dump has no norms of the hidden states of its second reading"));
  const auto json = nlohmann::json::parse(run_kvreplay({"info", dump, "--json"}).out);
  CHECK(json["reference_rows"] == nlohmann::json({{"kind", "repeat"}, {"first", 61}, {"rows", 12}}));
  CHECK(contains(run_kvreplay({"info", dump, "--prompt-len", "50"}).out,
                 "\nread again  12 queries on positions 61-72, of a prompt of 61 tokens\n"));
}

TEST_CASE("info tells the question that a dump ends with", "[cli]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_small_dump(dump);
  CHECK_FALSE(contains(run_kvreplay({"info", dump}).out, "question"));
  const fs::path path = fs::path(dump) / "manifest.json";
  auto manifest = nlohmann::json::parse(file_text(path));
  manifest["prompt_ends"] = {{"context", 50}, {"question", 60}};
  manifest["task"] = {
      {"name", "niah_multikey_1"},
      {"question", "Which number?"},
      {"answer", " 7\n"},
      {"spans", {{"needles", {{4, 9}, {12, 13}}}, {"question", {50, 60}}, {"answer", {62, 64}}}}};
  write_file(path, manifest.dump());
  const std::string said = run_kvreplay({"info", dump}).out;
  CHECK(contains(said,
                 "\nquestion    niah_multikey_1 on positions 50-59, answered on 62-63; needles on 4-8, 12\n"
                 "            Which number?\n"));
  CHECK(contains(said, "\nprompt ends --prompt-len context (50), question (60)\n"));
  const auto json = nlohmann::json::parse(run_kvreplay({"info", dump, "--json"}).out);
  CHECK(json["question"]["needles"] == nlohmann::json({{4, 9}, {12, 13}}));
  CHECK(json["question"]["answered"] == nlohmann::json({62, 64}));
  CHECK(json["prompt_ends"]["question"] == 60);
}

TEST_CASE("the dump of an interrupted capture is refused, with what says how far it came", "[cli]") {
  const TempDir temp;
  const std::string dump = temp / "dump", out = temp / "r";
  make_small_dump(dump);
  const fs::path path = fs::path(dump) / "manifest.json";
  auto manifest = nlohmann::json::parse(file_text(path));
  manifest["incomplete"] = true;
  write_file(path, manifest.dump());
  const std::string what =
      ": expected a whole dump, found one whose capture was interrupted; kvcapture.py --check ";
  for (const char* command : {"tokens", "evict", "budget", "channels", "analyze"}) {
    INFO(command);
    CHECK(contains(complaint({command, dump, "--out", out}), dump + what + dump + " says"));
    CHECK_FALSE(fs::exists(out));
  }
  for (const char* command : {"info", "verify"})
    CHECK(contains(complaint({command, dump}), dump + what + dump));
}

TEST_CASE("info says why a capture has no rope and no wo", "[cli]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_small_dump(dump);
  const fs::path path = fs::path(dump) / "manifest.json";
  auto manifest = nlohmann::json::parse(file_text(path));
  manifest.erase("rope");
  manifest["rope_note"] = "no rope: the layers turn in several ways";
  manifest["wo_note"] = "no wo: layer 1 has no plain o_proj weight";
  write_file(path, manifest.dump());
  remove_tensor(dump, "wo");
  const ProcessResult info = run_kvreplay({"info", dump});
  CHECK(info.code == 0);
  CHECK(contains(info.out, "rope        the manifest has no rope (the layers turn in several ways)\n"));
  CHECK(contains(info.out, "note: there is no wo: layer 1 has no plain o_proj weight\n"));
  const auto json = nlohmann::json::parse(run_kvreplay({"info", dump, "--json"}).out);
  CHECK(json["rope_note"] == "the manifest has no rope (the layers turn in several ways)");
  CHECK(json["incomplete"] == false);
}
