#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/kept_changes.hpp"
#include "tests/support/random_group.hpp"
#include "tests/support/read_file.hpp"
#include "tests/support/temp_dir.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <regex>
#include <set>
#include <string>
#include <vector>

// Results of dumps whose outputs are next to nothing, or nothing at all, beside their values.

using namespace kvreplay;
using namespace kvreplay::test;
namespace fs = std::filesystem;

namespace {

constexpr Index kPrompt = 50, kTotal = 58, kChannels = 6;

/// One KV head whose sink, of value 0, leads all others by `gap` nats; float32 numbers.
HeadGroup<double> head(double gap) {
  return to_double(to_float(random_group({.l = kPrompt,
                                          .T = kTotal,
                                          .d = kChannels,
                                          .d_v = kChannels,
                                          .d_model = 9,
                                          .value_offset = 0.5,
                                          .attention_sink = 0,
                                          .worthless_by = gap})));
}

/// A dump with a layer for each gap.
void make_dump(const fs::path& folder, const std::vector<double>& gaps) {
  const auto put = [](const fs::path& file, const std::vector<HeadMatrix<double>>& heads) {
    std::vector<float> all;
    for (const HeadMatrix<double>& x : heads)
      for (Index i = 0; i < x.size(); ++i) all.push_back(static_cast<float>(x.data()[i]));
    const std::vector<std::size_t> shape{heads.size(), static_cast<std::size_t>(heads[0].rows()),
                                         static_cast<std::size_t>(heads[0].cols())};
    write_file(file, npy("<f4", shape, all).bytes());
  };
  for (std::size_t layer = 0; layer < gaps.size(); ++layer) {
    const HeadGroup<double> group = head(gaps[layer]);
    const fs::path in = folder / fmt::format("layer_{:02}", layer);
    fs::create_directories(in);
    put(in / "q.npy", group.q);
    put(in / "k.npy", {group.k});
    put(in / "v.npy", {group.v});
    put(in / "wo.npy", {group.wo.begin(), group.wo.end()});
  }
  write_file(folder / "manifest.json",
             nlohmann::json{{"prompt_len", kPrompt}, {"scale", head(0).rule.scale}}.dump());
}

/// No number of any table, map or curve is infinite, none of a table "nan".
void check_numbers(const fs::path& results) {
  for (const auto& [name, bytes] : contents(results)) {
    INFO(name);
    if (name.ends_with(".csv")) CHECK_FALSE(std::regex_search(bytes, std::regex(",-?(nan|inf)[,\n]")));
    if (!name.ends_with(".npy")) continue;
    const Npy array = npy_of(bytes);
    if (array.descr == "<f8")
      for (const double x : array.as<double>()) REQUIRE_FALSE(std::isinf(x));
    if (array.descr == "<f4")
      for (const float x : array.as<float>()) REQUIRE_FALSE(std::isinf(x));
  }
}

std::vector<std::string> notes_of(const fs::path& results) {
  return nlohmann::json::parse(file_text(results / "summary.json"))["notes"];
}

bool any_contains(const std::vector<std::string>& texts, const std::string& part) {
  return std::any_of(texts.begin(), texts.end(),
                     [&](const std::string& text) { return contains(text, part); });
}

}  // namespace

TEST_CASE("relative errors are those of brute force at sinks of value 0", "[cli_vanishing]") {
  const TempDir dir;
  const std::vector<double> gaps{20, 23, 37, 60};
  make_dump(dir / "dump", gaps);
  for (const std::string precision : {"f32", "f64"}) {
    const fs::path out = dir / precision;
    succeed({"evict", dir / "dump", "--out", out, "--precision", precision, "--policy",
             "h2o,h2o+exact_remove,h2o+fastcaote,streaming", "--recent", "2", "--sigma", "0.5"});
    const Evictions evictions(out);
    std::size_t compared = 0;
    for (const CsvRow& row : evictions.rows()) {
      if (row.at("metric") != "output_error" || row.at("kv_head").empty() || row.at("rows") != "future")
        continue;
      const std::size_t layer = std::stoul(row.at("layer"));
      const HeadGroup<double> group = head(gaps[layer]);
      const std::string name = fmt::format("{}-{}-{}-{}.npy", row.at("policy"), row.at("semantics"),
                                           row.at("phase"), row.at("kept"));
      INFO(precision << ", layer " << layer << ", " << name);
      const auto kept = npy_file(out / fmt::format("layer_{:02}/kept", layer) / name).as<std::uint8_t>();
      const OutputChangeReference want = output_change_reference(group, {kPrompt, kTotal}, kept);
      CHECK(std::stod(row.at("value")) == Approx(want.change_sq / want.full_sq).epsilon(1e-7));
      ++compared;
    }
    CHECK(compared >= 16);
    check_numbers(out);
    CHECK_FALSE(any_contains(notes_of(out), "relative to"));
  }
}

TEST_CASE("what is relative to nothing is empty, and the notes say where", "[cli_vanishing]") {
  const TempDir dir;
  make_dump(dir / "dump", {20, 1000});
  for (const std::string precision : {"f32", "f64"}) {
    const fs::path out = dir / precision;
    succeed({"analyze", dir / "dump", "--out", out, "--precision", precision});
    check_numbers(out);
    const std::vector<std::string> notes = notes_of(out);
    INFO(fmt::format("{}", fmt::join(notes, "\n")));
    CHECK(any_contains(notes, "evictions.csv: no "));
    CHECK(any_contains(notes, "budgets.csv: no output_error of layer 1 head 0, layer 1"));
    CHECK_FALSE(any_contains(notes, "layer 0"));
    std::size_t empty = 0;
    const std::string header = "layer,kv_head,order,method,sigma,budget,loss,output_error,layer_output_error";
    for (const CsvRow& row : csv_rows(out / "budgets.csv", header)) {
      if (row.at("kv_head").empty()) continue;
      INFO("layer " << row.at("layer"));
      if (row.at("layer") == "0") CHECK_FALSE(row.at("output_error").empty());
      if (row.at("layer") == "1") empty += row.at("output_error").empty() ? 1 : 0;
    }
    CHECK(empty > 0);
  }
  succeed({"compare", dir / "f32", dir / "f64", "--out", dir / "compared"});
  check_numbers(dir / "compared");
  succeed({"report", dir / "f32"});
  check_numbers(dir / "f32");
}

TEST_CASE("every step of decoding is relative to its own output", "[cli_vanishing]") {
  const TempDir dir;
  make_dump(dir / "dump", {60, 120, 1000});
  succeed({"evict", dir / "dump", "--out", dir / "out", "--policy", "streaming", "--sinks", "1", "--recent",
           "4", "--phase", "decode", "--sigma", "0.5"});
  check_numbers(dir / "out");
  std::set<std::string> with_value;
  for (const CsvRow& row :
       csv_rows(dir / "out/decode.csv", "layer,kv_head,policy,semantics,budget,metric,value"))
    if (!row.at("value").empty() && !row.at("metric").ends_with("tokens")) with_value.insert(row.at("layer"));
  CHECK(with_value == std::set<std::string>{"0", "1"});  // float64 tells exp(-120) from 0, nothing exp(-1000)
  CHECK(any_contains(notes_of(dir / "out"), "decode.csv: no last, max, mean of layer 2 head 0"));
}
