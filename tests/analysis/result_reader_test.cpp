#include "analysis/results/result_reader.hpp"

#include "data/atomic_file.hpp"
#include "data/npy_write.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/data/expect_error.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"
#include "tests/support/temp_dir.hpp"

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace kvreplay {
namespace {

using test::expect_error;
using test::TempDir;

const std::string kSummary = R"({"program": "kvreplay", "schema": 1,
  "dump": {"model": "m", "fingerprint": "f", "layers": 4, "n_q": 4, "n_kv": 2, "d": 8, "d_v": 8, "d_model": 0,
           "T": 12, "T_q": 12, "l": 9},
  "layers": [1, 3], "totals": {"agreement_rows": 2}})";
const std::string kAgreement = "layer,kv_head,score,reference,rows,window,reserve,metric,value\n";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

/// A result folder of two layers with one table of `csv`.
ResultReader results_with(const TempDir& dir, const std::string& csv) {
  write_file(dir / "summary.json", kSummary);
  write_file(dir / "agreement.csv", csv);
  return ResultReader(dir.path());
}

std::size_t rows_of(const ResultReader& results, Table table) {
  std::size_t rows = 0;
  results.each_row(table, [&](const CsvReader&, const std::vector<std::string>&) { ++rows; });
  return rows;
}

}  // namespace

TEST_CASE("a result folder states its dump and its layers", "[results]") {
  const TempDir dir;
  CHECK_FALSE(ResultReader::is_results(dir.path()));
  CHECK_FALSE(ResultReader::is_results(dir / "nowhere"));
  write_file(dir / "summary.json", kSummary);
  CHECK(ResultReader::is_results(dir.path()));
  const ResultReader results(dir.path());
  CHECK(results.layers() == std::vector<Index>{1, 3});
  CHECK(results.shape().group() == 2);
  CHECK(results.shape().l == 9);
  CHECK(results.summary()["dump"]["model"] == "m");
  CHECK(results.map_names().empty());
  CHECK(results.dump_paths().empty());
  CHECK_FALSE(results.has("heads.csv"));
  CHECK_FALSE(results.has(""));
}

TEST_CASE("tables are read by column name, quoted fields whole", "[results]") {
  const TempDir dir;
  const ResultReader results =
      results_with(dir, kAgreement + "1,0,\"a,\"\"b\"\"\n\",exact_key,window,32,0,spearman,0.5\r\n" +
                            "3,1,attn,\"\",window,32,0,recall@1%,nan\n");
  std::vector<std::vector<std::string>> rows;
  std::vector<double> values;
  results.each_row(Table::agreement, [&](const CsvReader& csv, const std::vector<std::string>& row) {
    CHECK(csv.columns().size() == 9);
    CHECK(csv.column("value") == 8);
    CHECK_FALSE(csv.column("values"));
    rows.push_back(row);
    values.push_back(csv.number(row, csv.need("value")));
  });
  REQUIRE(rows.size() == 2);
  CHECK(rows[0][2] == "a,\"b\"\n");
  CHECK(rows[0][8] == "0.5");
  CHECK(rows[1][3].empty());
  REQUIRE(values.size() == 2);
  CHECK(values[0] == 0.5);
  CHECK(std::isnan(values[1]));
}

TEST_CASE("a table that is cut, torn or another is an error in one line", "[results]") {
  const TempDir dir;
  const std::string row = "1,0,attn,exact_key,window,32,0,spearman,0.5\n";
  const auto message = [&](const std::string& csv, std::initializer_list<std::string_view> parts) {
    INFO(csv);
    expect_error([&] { rows_of(results_with(dir, csv), Table::agreement); }, parts);
  };
  message("", {"agreement.csv: expected a line of column names, found an empty file"});
  message("layer,kv_head,score\n",
          {"agreement.csv: expected a column reference, found columns 'layer,kv_head"});
  message("layer,kv_head,score,reference,rows,reserve,metric,value\n",
          {"agreement.csv: expected a column window, found columns 'layer,kv_head"});
  message(kAgreement.substr(0, 20),
          {"agreement.csv: line 1: expected a line end, found the end of the file"});
  message(kAgreement + row + row.substr(0, row.size() - 1), {"line 3: expected a line end"});
  message(kAgreement + row + "1,0\n", {"line 3: expected 9 fields, found 2"});
  message(kAgreement + row + "\n", {"line 3: expected 9 fields, found 1"});
  message(kAgreement + "1,0,\"attn\n,\"\"\n", {"line 2: expected a quote that closes"});
  message(kAgreement + "1,0,\"at\ntn\",exact_key,window,32,0,spearman,0.5\n1\n",
          {"line 4: expected 9 fields"});
  message(kAgreement + "1,0,\"attn\"x,exact_key,window,32,0,spearman,0.5\n",
          {"line 2: expected quotes around"});
  message(kAgreement + "1,0,at\"tn,exact_key,window,32,0,spearman,0.5\n", {"line 2: expected quotes around"});
  message(kAgreement + row, {"agreement.csv: expected 2 rows, as summary.json says, found 1"});
  expect_error([&] { rows_of(results_with(dir, kAgreement), Table::heads); },
               {"heads.csv: expected a readable file"});

  const ResultReader results = results_with(dir, kAgreement + row + "x,-1,a,b,c,32,0,d,0.5z\n");
  const auto read = [&](const char* column, bool whole) {
    results.each_row(Table::agreement, [&](const CsvReader& csv, const std::vector<std::string>& fields) {
      if (whole)
        csv.index(fields, csv.need(column));
      else
        csv.number(fields, csv.need(column));
    });
  };
  expect_error([&] { read("value", false); }, {"line 3: expected a number as value, found '0.5z'"});
  expect_error([&] { read("kv_head", true); }, {"line 3: expected a whole number as kv_head, found '-1'"});
  expect_error([&] { read("layer", true); }, {"line 3: expected a whole number as layer, found 'x'"});
}

TEST_CASE("a summary that is broken or of another schema is an error in one line", "[results]") {
  const TempDir dir;
  const auto message = [&](const std::string& json, std::initializer_list<std::string_view> parts) {
    INFO(json);
    write_file(dir / "summary.json", json);
    expect_error([&] { ResultReader results(dir.path()); }, parts);
  };
  message("", {"summary.json: expected JSON, found an empty file"});
  message(kSummary.substr(0, 100), {"summary.json: expected JSON, found a syntax error at line"});
  message("[1]", {"summary.json: expected a JSON object, found [1]"});
  message("{}", {"summary.json: program: expected \"kvreplay\", found none"});
  message(replaced(kSummary, "\"schema\": 1", "\"schema\": 2"),
          {"summary.json: schema: expected 1, found 2"});
  message(replaced(kSummary, "\"n_kv\": 2", "\"n_kv\": 3"), {"dump: expected n_q a multiple of n_kv"});
  message(replaced(kSummary, "\"n_kv\": 2", "\"n_kv\": 0"),
          {"dump: n_kv: expected a whole number of at least 1"});
  message(replaced(kSummary, "\"T\": 12", "\"T\": 1e30"), {"dump: T: expected a whole number"});
  message(replaced(kSummary, "\"model\": \"m\"", "\"model\": 7"), {"dump.model: expected a string, found 7"});
  message(replaced(kSummary, "[1, 3]", "[3, 1]"), {"layers: expected ascending layers below 4, found [3,1]"});
  message(replaced(kSummary, "[1, 3]", "[1, 4]"), {"layers: expected ascending layers below 4"});
  message(replaced(kSummary, "[1, 3]", "\"all\""), {"layers: expected ascending layers below 4"});
  message(std::string(200000, '['), {"summary.json: expected JSON"});
  std::filesystem::remove(dir / "summary.json");
  expect_error(
      [&] { ResultReader results(dir.path()); },
      {dir.path().string() + ": expected a result folder, with a summary.json, found a folder without one"});
  expect_error([&] { ResultReader results(dir.path() / "nowhere"); }, {"a result folder", "found no folder"});
  write_file(dir / "file", "text");
  expect_error([&] { ResultReader results(dir.path() / "file"); }, {"a result folder", "found a file"});
  std::filesystem::create_directory(dir / "summary.json");
  expect_error([&] { ResultReader results(dir.path()); },
               {"summary.json: expected a regular file, found a folder"});
  CHECK_FALSE(ResultReader::is_results(dir.path()));
}

TEST_CASE("what is not the finished results of one dump is said in one line", "[results]") {
  const TempDir dir;
  const auto fails = [&](std::initializer_list<std::string_view> parts) {
    expect_error([&] { ResultReader results(dir.path()); }, parts);
  };
  fails({"expected a result folder", "found a folder without one"});
  write_file(dir / "manifest.json", "{}");
  fails({"expected a result folder", "found a dump", "kvreplay analyze"});
  write_file(dir / ".kvreplay/state.json", "{}");
  fails({dir.path().string() + ": expected finished results, found unfinished ones", "--resume"});
  write_file(dir / "summary.json",
             replaced(kSummary, "\"schema\": 1", "\"schema\": 1, \"kind\": \"over dumps\""));
  fails({"summary.json: kind: expected none: the results of one dump, found \"over dumps\""});
  write_file(dir / "summary.json", kSummary);
  CHECK_NOTHROW(ResultReader(dir.path()));
}

TEST_CASE("a result folder lists its tables and its arrays", "[results]") {
  const TempDir dir;
  const ResultReader results = results_with(dir, kAgreement);
  CHECK(results.array_names().empty());
  write_file(dir / "heads.csv", "layer,kv_head\n");
  write_file(dir / "notes.csv", "a\n");
  std::filesystem::create_directory(dir / "diff.csv");
  CHECK(results.tables() == std::vector<Table>{Table::heads, Table::agreement});
  const std::size_t shape[] = {1};
  for (const char* name : {"budget_curves.npy", "layer_03/tokens/key.npy", "layer_01/tokens/key.npy"})
    write_npy(dir / name, shape, std::vector<double>{1});
  CHECK(results.array_names() ==
        std::vector<std::string>{"budget_curves.npy", "layer_01/tokens/key.npy", "layer_03/tokens/key.npy"});
  CHECK(results.array_names("layer_03") == std::vector<std::string>{"layer_03/tokens/key.npy"});
  CHECK(results.array_names("maps").empty());
}

TEST_CASE("results have what files.csv names, whatever lies in the folder", "[results]") {
  const TempDir dir;
  results_with(dir, kAgreement);
  const std::size_t shape[] = {1};
  for (const char* name : {"maps/mine.npy", "layer_01/tokens/key.npy"})
    write_npy(dir / name, shape, std::vector<double>{1});
  write_file(dir / "files.csv",
             "name,bytes,xxh3\nheads.csv,1,00\nmaps/attn.npy,1,00\nlayer_01/tokens/key.npy,1,00\n");
  const ResultReader results(dir.path());
  CHECK(results.tables() == std::vector<Table>{Table::heads});
  CHECK(results.map_names() == std::vector<std::string>{"attn"});
  CHECK(results.array_names() == std::vector<std::string>{"layer_01/tokens/key.npy", "maps/attn.npy"});
  expect_error([&] { (void)results.map("attn"); }, {"maps/attn.npy"});
  expect_error([&] { (void)rows_of(results, Table::heads); }, {"heads.csv: expected a readable file"});
  write_file(dir / "summary.json", replaced(kSummary, "{", R"({"files_xxh3": "00", )"));
  expect_error([&] { ResultReader other(dir.path()); }, {"files.csv: expected the record that summary.json"});
  write_file(dir / "files.csv", "name\n");
  expect_error([&] { ResultReader damaged(dir.path()); }, {"files.csv: expected "});
}

TEST_CASE("maps have a row a layer and a column a head", "[results]") {
  const TempDir dir;
  const ResultReader results = results_with(dir, kAgreement);
  const std::size_t shape[] = {2, 2}, wide[] = {2, 3}, three[] = {1, 2, 2};
  write_npy(dir / "maps/b~x~mass@1%.npy", shape, std::vector<double>{1, 2, std::nan(""), HUGE_VAL});
  write_npy(dir / "maps/a.npy", wide, std::vector<double>(6, 0.0));
  write_file(dir / "maps/notes.txt", "not a map");
  CHECK(results.map_names() == std::vector<std::string>{"a", "b~x~mass@1%"});
  const Matrix<double> map = results.map("b~x~mass@1%");
  CHECK(map(0, 1) == 2);
  CHECK(std::isnan(map(1, 0)));
  CHECK(map(1, 1) == HUGE_VAL);
  expect_error([&] { (void)results.map("a"); }, {"a.npy: expected shape [2, 2], found shape [2, 3]"});
  expect_error([&] { (void)results.map("c"); }, {"maps/c.npy"});
  write_file(dir / "maps/d.npy", "no array");
  expect_error([&] { (void)results.map("d"); }, {"maps/d.npy: expected a .npy array"});

  write_npy_bool(dir / "kept.npy", three, std::vector<std::uint8_t>{1, 0, 0, 1});
  const ResultReader::Array kept = results.array("kept.npy");
  CHECK(kept.shape == std::vector<Index>{1, 2, 2});
  CHECK(kept.values == std::vector<double>{1, 0, 0, 1});
}

TEST_CASE("the dump is looked for from here and from the folders above", "[results]") {
  const TempDir dir;
  const std::filesystem::path folder = dir / "runs/one";
  write_file(folder / "summary.json", kSummary);
  const ResultReader results(folder);
  write_file(folder / "run.json", R"({"dump": "dumps/a"})");
  CHECK(results.dump_paths() ==
        std::vector<std::filesystem::path>{std::filesystem::absolute("dumps/a").lexically_normal()});
  std::filesystem::create_directories(dir / "dumps/a");
  CHECK(results.dump_paths() == std::vector<std::filesystem::path>{dir / "dumps/a"});
  std::filesystem::create_directories(folder / "dumps/a");
  CHECK(results.dump_paths() == std::vector<std::filesystem::path>{folder / "dumps/a", dir / "dumps/a"});
  write_file(folder / "run.json", R"({"dump": "/nowhere/at/all"})");
  CHECK(results.dump_paths() == std::vector<std::filesystem::path>{"/nowhere/at/all"});
  for (const char* bad : {"{", "{}", R"({"dump": 3})", R"({"dump": ""})"}) {
    INFO(bad);
    write_file(folder / "run.json", bad);
    CHECK(results.dump_paths().empty());
  }
}

TEST_CASE("the dump is looked for beside the results first, then where it lay", "[results]") {
  const TempDir dir;
  using Paths = std::vector<std::filesystem::path>;
  const std::filesystem::path folder = dir / "moved/runs/one";
  write_file(folder / "summary.json", kSummary);
  const ResultReader results(folder);
  write_file(folder / "run.json", nlohmann::json{{"dump", "dumps/a"},
                                                 {"directory", (dir / "first").string()},
                                                 {"dump_from_results", "../../dumps/a"}}
                                      .dump());
  CHECK(results.dump_paths() == Paths{dir / "first/dumps/a"});  // nothing is there: where it lay
  std::filesystem::create_directories(dir / "first/dumps/a");
  CHECK(results.dump_paths() == Paths{dir / "first/dumps/a"});
  std::filesystem::create_directories(dir / "moved/dumps/a");
  CHECK(results.dump_paths() == Paths{dir / "moved/dumps/a", dir / "first/dumps/a"});
}

TEST_CASE("a run finds its dump from any working folder, and moved along with it", "[results]") {
  const TempDir dir;
  test::make_small_dump((dir / "here/dumps/a").string());
  std::filesystem::create_directories(dir / "here/runs");
  REQUIRE(test::run({test::program(), "tokens", "dumps/a", "--out", "runs/one", "--quiet"},
                    {.folder = dir / "here"})
              .code == 0);
  using Paths = std::vector<std::filesystem::path>;
  CHECK(ResultReader(dir / "here/runs/one").dump_paths() == Paths{dir / "here/dumps/a"});
  std::filesystem::rename(dir / "here", dir / "there");
  CHECK(ResultReader(dir / "there/runs/one").dump_paths() == Paths{dir / "there/dumps/a"});
  std::filesystem::create_directories(dir / "elsewhere");
  std::filesystem::rename(dir / "there/runs/one", dir / "elsewhere/one");
  CHECK(ResultReader(dir / "elsewhere/one").dump_paths() == Paths{dir / "here/dumps/a"});  // where it lay
}

TEST_CASE("every table and map that analyze writes is read", "[results]") {
  const TempDir dir;
  const std::string dump = (dir / "dump").string(), out = (dir / "out").string();
  test::make_small_dump(dump);
  REQUIRE(test::run_kvreplay({"analyze", dump, "--out", out, "--quiet"}).code == 0);
  const ResultReader results(out);
  CHECK(results.layers() == std::vector<Index>{0, 1});
  CHECK(results.dump_paths() == std::vector<std::filesystem::path>{dump});
  CHECK(results.tables() == std::vector<Table>{Table::heads, Table::agreement, Table::evictions,
                                               Table::budgets, Table::channels});
  for (const Table table : results.tables()) {
    INFO(name_of(table));
    CHECK(rows_of(results, table) > 3);
  }
  const std::vector<std::string> names = results.map_names();
  CHECK(names.size() > 1000);
  for (const std::string& name : names) CHECK_NOTHROW(results.map(name));
  const ResultReader::Array curves = results.array("curves/snapkv.npy");
  CHECK(curves.shape == std::vector<Index>{2, 2, 62});
  CHECK(results.array("layer_00/channels/rope_pair.npy").shape == std::vector<Index>{8});
}

}  // namespace kvreplay
