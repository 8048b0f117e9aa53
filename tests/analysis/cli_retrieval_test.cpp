#include "sim/cache/cache_outputs.hpp"
#include "sim/head_group.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;
namespace fs = std::filesystem;

namespace {

constexpr Index kTokens = 61, kSteps = 9;
constexpr double kKeyBytes = 8 * 2, kTokenBytes = 2 * kKeyBytes;  // 8 channels, in 16 bits

std::vector<std::string> arguments(const fs::path& temp, const std::string& out,
                                   const std::vector<std::string>& more) {
  std::vector<std::string> all = {"evict",       temp / "dump", "--out",     temp / out,
                                  "--precision", "f64",         "--threads", "2"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// read/: which prompt tokens the decoding steps read.
std::vector<PagesRead> read_of(const fs::path& out, Index layer, const std::string& file) {
  const Npy array = npy_file(out / fmt::format("layer_0{}", layer) / "read" / (file + ".npy"));
  CHECK(array.descr == "|u1");
  REQUIRE(array.shape == std::vector<std::size_t>{2, kSteps, 8});
  std::vector<PagesRead> heads(2, PagesRead{1, kTokens, {}});
  for (Index at = 0; at < 2 * kSteps; ++at) {
    std::vector<std::uint8_t>& row = heads[at / kSteps].read.emplace_back();
    for (Index p = 0; p < 64; ++p) {
      const auto bit =
          static_cast<std::uint8_t>((static_cast<unsigned char>(array.data[at * 8 + p / 8]) >> (p % 8)) & 1);
      if (p < kTokens)
        row.push_back(bit);
      else
        CHECK(bit == 0);
    }
  }
  return heads;
}

double tokens_read(const PagesRead& pages) {
  double all = 0;
  for (const auto& row : pages.read) all += static_cast<double>(std::count(row.begin(), row.end(), 1));
  return all / static_cast<double>(pages.read.size());
}

/// The rows of a policy that evicts but for bytes_read.
std::string rows_of(const fs::path& out, const std::string& policy) {
  std::string rows;
  const Evictions csv(out);
  for (const CsvRow& row : csv.rows())
    if (row.at("policy") == policy && row.at("metric") != "bytes_read")
      for (const auto& [name, value] : row) rows += value + (name == "value" ? "\n" : ",");
  return rows;
}

}  // namespace

TEST_CASE("what rows read, its errors and its bytes", "[cli][evict][retrieval]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  succeed(arguments(
      temp / "", "r",
      {"--policy", "h2o,quest[page=4],sparq,double_sparsity[r=3],top_k,top_p", "--budget", "18,61"}));
  const fs::path out = temp / "r";
  const Evictions csv(out);
  const Dump dump = Dump::open(temp / "dump");
  struct Policy {
    std::string name;
    Index kept;                   // tokens of the budget of 18 that a row reads
    double held = 0, chosen = 0;  // bytes beside the cache, and those read to choose
    bool exact = true;            // every row reads as many
  };
  const double pages = 2 * 16 * kKeyBytes;
  for (const Policy& policy :
       {Policy{"quest[page=4]", 16, pages, pages, false}, Policy{"sparq", 18, 0, 2 * kTokens * 2},
        Policy{"double_sparsity[r=3]", 18, 3 * kTokens * 2, 3 * kTokens * 2}, Policy{"top_k", 18},
        Policy{"top_p", 18, 0, 0, false}}) {
    INFO(policy.name);
    const std::string run = policy.name + ",paper,prefill,18",
                      file = fmt::format("{}-paper-prefill-{}", policy.name, policy.kept);
    double all_read = 0, full_sq = 0, change_sq = 0;
    for (Index layer = 0; layer < 2; ++layer) {
      const std::vector<PagesRead> heads = read_of(out, layer, file);
      const Npy kept = npy_file(out / fmt::format("layer_0{}", layer) / "kept" / (file + ".npy"));
      CHECK(kept.data == std::string(2 * kTokens, '\x01'));
      for (Index head = 0; head < 2; ++head) {
        const std::string scope = fmt::format("{},{}", layer, head);
        for (const auto& row : heads[head].read)
          if (policy.exact) CHECK(std::count(row.begin(), row.end(), 1) == policy.kept);
        CHECK(tokens_read(heads[head]) <= static_cast<double>(policy.kept));
        CHECK(tokens_read(heads[head]) > static_cast<double>(policy.kept) - 4);
        const double read = tokens_read(heads[head]) * kTokenBytes + policy.chosen;
        CHECK(csv.at(scope, run, "", "bytes") == kTokens * kTokenBytes + policy.held);
        CHECK(csv.at(scope, run, "", "bytes_read") == Approx(read).epsilon(1e-12));
        all_read += read;
        const OutputChangeReference want =
            output_change_reference(load_head_group<double>(dump, layer, head), {kTokens, kTokens + kSteps},
                                    {.kept = KeptSet(kTokens, 1), .pages = heads[head]});
        CHECK(csv.at(scope, run, "future", "output_error") ==
              Approx(want.change_sq / want.full_sq).epsilon(1e-9));
        full_sq += want.full_sq;
        change_sq += want.change_sq;
        CHECK(csv.at(scope, run, "window", "output_error") > 0);
        for (const char* metric : {"eviction_loss", "optimality_gap", "oracle_recall"})
          CHECK_FALSE(csv.has(scope, run, "future", metric));
      }
    }
    CHECK(csv.at(",", run, "", "bytes_read") == Approx(all_read));
    CHECK(csv.at(",", run, "future", "output_error") == Approx(change_sq / full_sq).epsilon(1e-9));
    CHECK(csv.at(",", run, "future", "layer_output_error") > 0);
    // All of the prompt is read at the largest budget, without a word about what to choose by.
    const std::string whole = policy.name + ",paper,prefill,61";
    CHECK(csv.at(",", whole, "future", "output_error") == 0);
    CHECK(csv.at(",", whole, "", "bytes_read") == 4 * kTokens * kTokenBytes);
  }
  for (const CsvRow& row : csv.rows())
    if (row.at("budget") == "18")
      CHECK(row.at("kept") == (row.at("policy") == "quest[page=4]" ? "16" : "18"));
  // Beside them an eviction is what it is alone, and reads what it holds.
  CHECK(csv.at("0,1", "h2o,paper,prefill,18", "", "bytes_read") == 18 * kTokenBytes);
  CHECK(csv.at("0,1", "h2o,paper,prefill,18", "", "bytes") == 18 * kTokenBytes);
  succeed(arguments(temp / "", "alone", {"--policy", "h2o", "--budget", "18,61"}));
  CHECK(rows_of(out, "h2o") == rows_of(temp / "alone", "h2o"));
  CHECK_FALSE(contains(file_text(temp / "alone/evictions.csv"), "bytes_read"));
}

TEST_CASE("what evicts nothing has no phase but prefill, and nothing is made up for",
          "[cli][evict][retrieval]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  const ProcessResult run = succeed(
      arguments(temp / "", "r", {"--policy", "h2o,sparq", "--budget", "18", "--phase", "prefill,decode"}));
  CHECK(contains(
      run.out,
      "left out: sparq (paper) in phase decode (it evicts nothing: rows read less of the whole prompt)"));
  CHECK(
      contains(run.out, "nothing is evicted, a budget is how many tokens of the prompt a row reads: sparq"));
  const ProcessResult fitted = succeed(
      arguments(temp / "", "f", {"--policy", "h2o,sparq", "--budget", "18", "--compensate", "values"}));
  CHECK(contains(fitted.out, "left out: sparq-paper-prefill-18-values (nothing is evicted)"));
}

TEST_CASE("semantics of sparq differ where query heads share keys", "[cli][evict][retrieval]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  succeed(arguments(temp / "", "r", {"--policy", "sparq", "--budget", "18", "--diff", "paper,official"}));
  const Evictions csv(temp / "r");
  CHECK(csv.at(",", "sparq,paper,prefill,18", "future", "output_error") !=
        csv.at(",", "sparq,official,prefill,18", "future", "output_error"));
  CHECK_FALSE(fs::exists(temp / "r/diff.csv"));  // both keep everything
  succeed(arguments(temp / "", "one",
                    {"--policy", "sparq", "--budget", "18", "--diff", "paper,official", "--per-query-head"}));
  const Evictions each(temp / "one");
  CHECK(each.at(",", "sparq,paper,prefill,18", "future", "output_error") ==
        each.at(",", "sparq,official,prefill,18", "future", "output_error"));
}

TEST_CASE("the first layers may be read whole", "[cli][evict][retrieval]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  succeed(arguments(temp / "", "r", {"--policy", "quest[page=4],quest[page=4,dense=1]", "--budget", "18"}));
  const Evictions csv(temp / "r");
  const std::string sparse = "quest[page=4],paper,prefill,18",
                    dense = "quest[page=4,dense=1],paper,prefill,18";
  CHECK(csv.at("0,", dense, "future", "output_error") == 0);
  CHECK(csv.at("0,0", dense, "", "bytes_read") == kTokens * kTokenBytes);
  CHECK(csv.at("1,1", dense, "", "bytes_read") == csv.at("1,1", sparse, "", "bytes_read"));
  CHECK(csv.at("1,", dense, "future", "output_error") == csv.at("1,", sparse, "future", "output_error"));
}

TEST_CASE(
    "errors by bytes have what rows read on their axis, and sentences set no reading against an eviction",
    "[cli][evict][retrieval]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  const ProcessResult run =
      succeed(arguments(temp / "", "r", {"--policy", "h2o,snapkv,top_k,sparq", "--budget", "18"}));
  CHECK(contains(run.out, "lowest output error of 2 policies"));
  CHECK(contains(run.out, "sparq, which keeps the whole prompt and lets a row read as many tokens, loses"));
  const std::string page = report_of(temp / "r");
  CHECK(contains(page, "MiB that a row reads of the prompt"));
  CHECK(contains(page, "it is the tokens that a row reads"));
  const ProcessResult among =
      succeed(arguments(temp / "", "only", {"--policy", "quest[page=4],top_k,sparq", "--budget", "18"}));
  CHECK(contains(among.out, "lowest output error of 2 policies"));
  CHECK(contains(among.out, "times that of top_k, which reads everything to choose"));
}
