#include "data/dump.hpp"
#include "data/npy_write.hpp"
#include "sim/eviction/policy.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

using namespace kvreplay;
using namespace kvreplay::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

const std::vector<std::string> kHeads = {"0,0", "0,1", "1,0", "1,1"};
const std::vector<std::string> kRowSets = {"window", "future"};
constexpr std::size_t kTokens = 61, kSteps = 9;
constexpr double kBytesPerToken = 8 * 2 * 2;  // key and value of 8 channels, in 16 bits

/// A folder with a small dump and results of `evict` on it.
class EvictRuns {
 public:
  EvictRuns() { make_small_dump(dump()); }
  std::string dump() const { return temp_ / "dump"; }
  fs::path operator/(const std::string& name) const { return temp_ / name; }

  ProcessResult run(const std::string& name, const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"evict",       dump(), "--out",     temp_ / name,
                                          "--precision", "f64",  "--threads", "2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    ProcessResult result = succeed(arguments);
    REQUIRE(result.err.empty());
    return result;
  }
  Npy kept(const std::string& name, int layer, const std::string& file) const {
    return npy_file(temp_ / name / fmt::format("layer_0{}", layer) / "kept" / (file + ".npy"));
  }

 private:
  TempDir temp_;
};

std::size_t kept_in_row(const Npy& kept, std::size_t row) {
  return static_cast<std::size_t>(
      std::count(kept.data.begin() + static_cast<std::ptrdiff_t>(row * kTokens),
                 kept.data.begin() + static_cast<std::ptrdiff_t>((row + 1) * kTokens), '\x01'));
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

}  // namespace

TEST_CASE("a threshold keeps other numbers in other heads, and says how many", "[cli][evict]") {
  const EvictRuns runs;
  const std::string named = "knorm[threshold=-20]", none = "score:attn[threshold=1000000]";
  const ProcessResult run = runs.run(
      "r", {"--policy", named + "," + none + ",snapkv", "--phase", "prefill,decode", "--budget", "20"});
  INFO(run.out);
  CHECK(contains(run.out, " of 61 (mean of 4 heads"));
  CHECK(contains(run.out, "kept 0 tokens: "));
  CHECK(contains(run.out,
                 named + " (paper) in phase decode, " + none + " (paper) in phase decode (a threshold"));
  std::size_t tokens = 0;
  for (int layer = 0; layer < 2; ++layer) {
    const Npy kept = runs.kept("r", layer, named + "-paper-prefill-mixed");
    for (std::size_t head = 0; head < 2; ++head) tokens += kept_in_row(kept, head);
  }
  CHECK(tokens > 0);
  CHECK(tokens < 4 * 61);
  const Evictions csv(runs / "r");
  for (const CsvRow& row : csv.rows())
    if (row.at("policy") == named) CHECK(row.at("budget").empty());
}

TEST_CASE("ties at the cut are counted where asked for", "[cli][evict]") {
  const EvictRuns runs;
  const ProcessResult run =
      runs.run("r", {"--policy", "knorm,streaming,greedy_exact", "--ties", "--budget", "20"});
  CHECK(contains(run.out,
                 "tokens of a head that tie with the last one kept: as scored / in float16 / in bfloat16"));
  const auto totals = nlohmann::json::parse(file_text(runs / "r/summary.json")).at("totals");
  CHECK(totals.at("ties").size() == 1);  // the others rank by no score
  CHECK(totals.at("ties").at("knorm-paper-prefill-20").at("as_scored") == 0);
  CHECK(totals.at("ties").at("knorm-paper-prefill-20").contains("bfloat16"));
  CHECK_FALSE(contains(runs.run("plain", {"--policy", "knorm", "--budget", "20"}).out, "that tie"));
}

TEST_CASE("the result folder of evict is as its format says", "[cli][evict]") {
  const EvictRuns runs;
  runs.run("r", {"--policy", "h2o,snapkv+joint,streaming", "--sigma", "0.5,0.7", "--window", "16", "--phase",
                 "prefill,blockwise:16,decode,append-only"});
  const fs::path out = runs / "r";
  const Evictions csv(out);
  std::set<std::string> kept_files;
  for (const char* policy : {"h2o", "snapkv+joint", "streaming"})
    for (const char* phase : {"prefill", "blockwise:16", "decode", "append-only"})
      for (const auto& [sigma, count] : {std::pair<const char*, std::size_t>{"0.5", 31}, {"0.7", 18}}) {
        const std::string run = fmt::format("{},paper,{},{}", policy, phase, sigma), name = phase;
        const bool decodes = name == "decode" || name == "append-only";
        std::string file = fmt::format("{}-paper-{}-{}", policy, phase, count);
        std::replace(file.begin(), file.end(), ':', '_');
        kept_files.insert(file + ".npy");
        for (std::size_t head = 0; head < kHeads.size(); ++head) {
          const Npy kept = runs.kept("r", static_cast<int>(head / 2), file);
          CHECK(kept.descr == "|b1");
          CHECK(kept.shape == std::vector<std::size_t>{2, kTokens});
          const std::size_t of_prompt = kept_in_row(kept, head % 2);
          CHECK((name == "decode" ? of_prompt <= count : of_prompt == count));
          // nothing leaves an append-only cache, but decoded tokens join it
          const double tokens = csv.at(kHeads[head], run, "", "bytes") / kBytesPerToken;
          CHECK(tokens >= static_cast<double>(count));
          CHECK(tokens <= static_cast<double>(count + (name == "append-only" ? kSteps : 0)));
          CHECK(csv.has(kHeads[head], run, "window", "output_error") == !decodes);
          CHECK(csv.at(kHeads[head], run, "future", "output_error") > 0);
          for (const char* metric : {"eviction_loss", "optimality_gap", "oracle_recall"}) {
            CHECK(csv.at(kHeads[head], run, "future", metric) >= 0);
            CHECK_FALSE(csv.has(kHeads[head], run, "window", metric));
          }
          CHECK_FALSE(csv.has(kHeads[head], run, "future", "layer_output_error"));
          CHECK_FALSE(csv.has(kHeads[head], run, "future", "excess_over_exchange"));
        }
        // a layer and the whole model: sums, recall a mean
        CHECK(csv.at("1,", run, "future", "layer_output_error") > 0);
        CHECK(csv.at(",", run, "future", "layer_output_error") > 0);
        double bytes = 0, loss = 0, recall = 0;
        for (const std::string& head : kHeads) {
          bytes += csv.at(head, run, "", "bytes");
          loss += csv.at(head, run, "future", "eviction_loss");
          recall += csv.at(head, run, "future", "oracle_recall");
        }
        CHECK(csv.at(",", run, "", "bytes") == bytes);
        CHECK(csv.at(",", run, "future", "eviction_loss") == Approx(loss));
        CHECK(csv.at(",", run, "future", "oracle_recall") == Approx(recall / 4));
        // maps
        const Npy map = npy_file(out / "maps" / (file + "~future~output_error.npy"));
        CHECK(map.descr == "<f8");
        CHECK(map.shape == std::vector<std::size_t>{2, 2});
        for (std::size_t head = 0; head < 4; ++head)
          CHECK(map.as<double>()[head] == csv.at(kHeads[head], run, "future", "output_error"));
      }
  for (const CsvRow& row : csv.rows()) {
    if (row.at("phase") != "append-only") CHECK(row.at("kept") == (row.at("budget") == "0.5" ? "31" : "18"));
    CHECK((row.at("rows") == "") == (row.at("metric") == "bytes"));
  }
  for (const char* layer : {"layer_00", "layer_01"}) CHECK(names_in(out / layer / "kept") == kept_files);

  const Json summary = Json::parse(file_text(out / "summary.json"));
  CHECK(summary["totals"]["eviction_rows"] == csv.rows().size());
  CHECK(summary["totals"]["evictions"] == kept_files.size());
  REQUIRE(summary["left_out"].size() == 1);
  CHECK(summary["left_out"][0]["what"] ==
        "loss_row, loss_head, loss_layer, loss_step, loss_joint, dnll");  // the dump has no gradients
  CHECK(contains(summary["notes"].dump(), "errors do not feed back"));
  CHECK_FALSE(fs::exists(out / ".kvreplay"));
}

TEST_CASE("decoding leaves an error at every step", "[cli][evict]") {
  const EvictRuns runs;
  runs.run("r", {"--policy", "tova,keydiff", "--budget", "20,31", "--phase", "decode,append-only"});
  const fs::path out = runs / "r";
  CHECK(names_in(out / "decode").size() == 8);
  const auto table = csv_rows(out / "decode.csv", "layer,kv_head,policy,semantics,budget,metric,value");
  CHECK(table.size() == 4 * 8 * 5);
  for (const CsvRow& row : table) {
    if (row.at("metric").ends_with("tokens")) continue;
    const Npy steps =
        npy_file(out / "decode" /
                 fmt::format("{}-{}-{}.npy", row.at("policy"), row.at("semantics"), row.at("budget")));
    REQUIRE(steps.descr == "<f8");
    REQUIRE(steps.shape == std::vector<std::size_t>{2, 2, kSteps});
    const std::vector<double> all = steps.as<double>();
    const std::size_t head = 2 * std::stoul(row.at("layer")) + std::stoul(row.at("kv_head"));
    const std::vector<double> mine(all.begin() + static_cast<std::ptrdiff_t>(head * kSteps),
                                   all.begin() + static_cast<std::ptrdiff_t>((head + 1) * kSteps));
    CHECK(*std::min_element(mine.begin(), mine.end()) >= 0);
    double mean = 0;
    for (const double step : mine) mean += step / kSteps;
    const double want = row.at("metric") == "mean"  ? mean
                        : row.at("metric") == "max" ? *std::max_element(mine.begin(), mine.end())
                                                    : mine.back();
    CHECK(std::stod(row.at("value")) == Approx(want).epsilon(1e-12));
  }
  // nothing is ever evicted by the append-only rule: what the prompt left stays
  runs.run("p", {"--policy", "tova,keydiff", "--budget", "20,31"});
  for (const char* policy : {"tova", "keydiff"})
    for (int layer : {0, 1})
      CHECK(runs.kept("r", layer, fmt::format("{}-paper-append-only-20", policy)).data ==
            runs.kept("p", layer, fmt::format("{}-paper-prefill-20", policy)).data);
}

TEST_CASE("a cache that is cut at intervals grows and falls back", "[cli][evict]") {
  const EvictRuns runs;
  const auto tokens_of = [&](const std::string& run, const std::string& name) {
    const Npy steps = npy_file(runs / run / "decode_tokens" / (name + ".npy"));
    REQUIRE(steps.shape == std::vector<std::size_t>{2, 2, kSteps});
    const std::vector<double> all = steps.as<double>();
    return std::vector<double>(all.begin(), all.begin() + kSteps);
  };
  runs.run("cut", {"--policy", "rkv,snapkv", "--budget", "20", "--phase", "decode:3,decode"});
  runs.run("whole", {"--policy", "rkv,snapkv", "--budget", "20", "--phase", "decode:3", "--prompt", "whole"});
  runs.run("pinned", {"--policy", "snapkv", "--budget", "2", "--phase", "decode:3", "--prompt", "pinned"});
  for (std::size_t step = 0; step < kSteps; ++step) {
    const double since = static_cast<double>(step % 3 + 1), l = kTokens;
    INFO("step " << step);
    CHECK(tokens_of("cut", "snapkv-paper-20")[step] == 21);
    CHECK(tokens_of("cut", "rkv~decode_3-paper-20")[step] == 20 + since);
    CHECK(tokens_of("whole", "rkv~decode_3-paper-20")[step] == (step < 3 ? l : 20) + since);
    CHECK(tokens_of("pinned", "snapkv~decode_3-paper-2")[step] == l + (step < 3 ? 0 : 2) + since);
  }
  for (const int layer : {0, 1}) {
    const Npy kept = runs.kept("pinned", layer, "snapkv-paper-decode_3-2");
    CHECK(kept_in_row(kept, 0) == kTokens);
  }
  // Until the first cut a whole cache has no error.
  for (const CsvRow& row :
       csv_rows(runs / "whole" / "decode.csv", "layer,kv_head,policy,semantics,budget,metric,value"))
    if (row.at("metric") == "most_tokens") CHECK(std::stod(row.at("value")) == kTokens + 3);
  const Npy errors = npy_file(runs / "whole" / "decode" / "rkv~decode_3-paper-20.npy");
  for (std::size_t step = 0; step < 3; ++step) CHECK(errors.as<double>()[step] == 0);
  CHECK(errors.as<double>()[3] > 0);
}

TEST_CASE("whole sentences stay together where the dump has texts", "[cli][evict]") {
  const TempDir temp;
  const fs::path dump = source_dir() / "data/samples/pystdlib-lm";
  succeed({"evict", dump.string(), "--out", temp / "r", "--policy",
           "snapkv[chunk=line],snapkv[chunk=sentence]", "--keep", "20%", "--layers", "0", "--quiet"});
  const Dump opened = Dump::open(dump);
  const auto l = static_cast<std::size_t>(opened.shape().l);
  const std::vector<Index> ends = chunk_ends(std::span(opened.tokens()->text).first(l), ChunkBy::line);
  REQUIRE(ends.size() > 10);
  const fs::path folder = fs::path(temp / "r") / "layer_00" / "kept";
  REQUIRE(names_in(folder).size() == 2);
  for (const std::string& name : names_in(folder)) {
    if (!contains(name, "line")) continue;
    const Npy kept = npy_file(folder / name);
    for (std::size_t head = 0; head < kept.shape[0]; ++head) {
      std::size_t cut = 0,
                  begin = 0;  // lines that are there in part: the last that came in, and the pinned one
      for (const Index end : ends) {
        const auto first = kept.data.begin() + static_cast<std::ptrdiff_t>(head * l);
        const auto there = std::count(first + static_cast<std::ptrdiff_t>(begin), first + end, '\x01');
        cut += there > 0 && there < end - static_cast<Index>(begin) ? 1 : 0;
        begin = static_cast<std::size_t>(end);
      }
      CHECK(cut <= 2);
    }
  }
}

TEST_CASE("a budget is tokens or a ratio", "[cli][evict]") {
  const EvictRuns runs;
  runs.run("s", {"--policy", "h2o,keydiff", "--sigma", "0.5"});
  runs.run("b", {"--policy", "h2o,keydiff", "--budget", "31"});
  const Evictions by_sigma(runs / "s"), by_budget(runs / "b");
  REQUIRE(by_sigma.rows().size() == by_budget.rows().size());
  for (std::size_t r = 0; r < by_sigma.rows().size(); ++r) {
    CsvRow a = by_sigma.rows()[r], b = by_budget.rows()[r];
    CHECK(a["budget"] == "0.5");
    CHECK(b["budget"] == "31");
    a.erase("budget");
    b.erase("budget");
    CHECK(a == b);
  }
  for (const char* policy : {"h2o", "keydiff"})
    CHECK(runs.kept("s", 0, fmt::format("{}-paper-prefill-31", policy)).data ==
          runs.kept("b", 0, fmt::format("{}-paper-prefill-31", policy)).data);
}

TEST_CASE("kept sets obey their laws", "[cli][evict]") {
  const EvictRuns runs;
  const std::string policies = "h2o,tova,streaming,keydiff,oracle,oracle_exact,exchange+streaming";
  runs.run("r", {"--policy", policies + ",greedy_exact,exchange", "--budget", "25,61"});
  const Evictions csv(runs / "r");
  const auto run = [](const std::string& policy, int budget) {
    return fmt::format("{},paper,prefill,{}", policy, budget);
  };
  for (const std::string& head : kHeads) {
    for (const std::string& rows : kRowSets) {
      const auto error = [&](const std::string& policy) {
        return csv.at(head, run(policy, 25), rows, "output_error");
      };
      for (const char* policy : {"h2o", "tova", "streaming", "keydiff", "oracle", "oracle_exact",
                                 "exchange+streaming", "greedy_exact", "exchange"}) {
        INFO(head << " " << rows << " " << policy);
        CHECK(csv.at(head, run(policy, 61), rows, "output_error") == 0.0);  // nothing is lost
        CHECK(error(policy) > 0);
        CHECK(csv.at(head, run(policy, 25), rows, "excess_over_greedy_exact") ==
              Approx(error(policy) - error("greedy_exact")).margin(1e-15));
        CHECK(csv.at(head, run(policy, 25), rows, "excess_over_exchange") ==
              Approx(error(policy) - error("exchange")).margin(1e-15));
        CHECK(csv.at(head, run(policy, 25), "future", "optimality_gap") >= 0);
        CHECK(csv.at(head, run(policy, 25), "future", "oracle_recall") <= 1);
        CHECK(csv.at(head, run(policy, 61), "future", "eviction_loss") == 0.0);
      }
    }
    CHECK(csv.at(head, run("oracle", 25), "future", "oracle_recall") == 1.0);
    CHECK(csv.at(head, run("oracle", 25), "future", "optimality_gap") == 0.0);
    CHECK(csv.at(head, run("keydiff", 25), "future", "oracle_recall") < 1.0);
    // swaps only ever lower the error on the rows that they look at
    CHECK(csv.at(head, run("exchange", 25), "window", "excess_over_greedy_exact") <= 0);
    CHECK(csv.at(head, run("exchange+streaming", 25), "window", "output_error") <
          csv.at(head, run("streaming", 25), "window", "output_error"));
  }
  runs.run("f", {"--policy", policies + ",greedy_exact,exchange", "--budget", "25", "--on", "future"});
  const Evictions future(runs / "f");
  double here = 0, there = 0;
  for (const std::string& head : kHeads) {
    CHECK(future.at(head, run("exchange", 25), "future", "excess_over_greedy_exact") <= 0);
    CHECK(future.at(head, run("oracle", 25), "future", "excess_over_exchange") > 0);
    here += csv.at(head, run("greedy_exact", 25), "future", "output_error");
    there += future.at(head, run("greedy_exact", 25), "future", "output_error");
  }
  CHECK(there < here);
}

TEST_CASE("semantics side by side", "[cli][evict]") {
  const EvictRuns runs;
  const ProcessResult done =
      runs.run("d", {"--policy", "h2o,tova", "--sigma", "0.7", "--diff", "paper,official,kvpress"});
  CHECK(contains(done.out, "tokens that two semantics share"));
  runs.run("k", {"--policy", "h2o,tova", "--sigma", "0.7", "--semantics", "kvpress"});
  const auto table =
      csv_rows(runs / "d/diff.csv", "layer,kv_head,policy,phase,budget,semantics,other,rows,metric,value");
  CHECK(table.size() == 2 * 3 * 7 * 7);  // policies, pairs, scopes, figures
  for (const char* policy : {"h2o", "tova"})
    for (const int layer : {0, 1}) {
      const auto kept = [&](const std::string& semantics) {
        return runs.kept("d", layer, fmt::format("{}-{}-prefill-18", policy, semantics));
      };
      CHECK(kept("kvpress").data == runs.kept("k", layer, fmt::format("{}-kvpress-prefill-18", policy)).data);
      for (const auto& [one, other] :
           {std::pair{"paper", "official"}, {"paper", "kvpress"}, {"official", "kvpress"}}) {
        const Npy difference = npy_file(runs / "d" / fmt::format("layer_0{}/diff", layer) /
                                        fmt::format("{}-{}-{}-prefill-0.7.npy", policy, one, other));
        CHECK(difference.descr == "<i4");
        REQUIRE(difference.shape == std::vector<std::size_t>{2, kTokens});
        const std::vector<std::int32_t> values = difference.as<std::int32_t>();
        const std::string a = kept(one).data, b = kept(other).data;
        std::size_t both = 0;
        for (std::size_t p = 0; p < values.size(); ++p) {
          REQUIRE(values[p] == a[p] - b[p]);
          if (p < kTokens && a[p] != 0 && b[p] != 0) ++both;
        }
        for (const CsvRow& row : table)
          if (row.at("layer") == std::to_string(layer) && row.at("kv_head") == "0" &&
              row.at("policy") == policy && row.at("semantics") == one && row.at("other") == other &&
              row.at("metric") == "kept_by_both")
            CHECK(std::stoul(row.at("value")) == both);
      }
    }
  CHECK(runs.kept("d", 0, "h2o-kvpress-prefill-18").data != runs.kept("d", 0, "h2o-paper-prefill-18").data);
}

TEST_CASE("a cache for every query head", "[cli][evict]") {
  const EvictRuns runs;
  const std::vector<std::string> options = {"--policy", "h2o,tova", "--budget",
                                            "20",       "--phase",  "prefill,decode"};
  runs.run("g", options);
  std::vector<std::string> per_head = options;
  per_head.emplace_back("--per-query-head");
  runs.run("q", per_head);
  const Evictions group(runs / "g"), query(runs / "q");
  for (const char* run : {"h2o,paper,prefill,20", "tova,paper,decode,20"})
    for (const std::string& head : kHeads)
      CHECK(query.at(head, run, "", "bytes") == 2 * group.at(head, run, "", "bytes"));
  const Npy kept = runs.kept("q", 1, "h2o-paper-prefill-20");
  CHECK(kept.shape == std::vector<std::size_t>{4, kTokens});
  for (std::size_t head = 0; head < 4; ++head) CHECK(kept_in_row(kept, head) == 20);
  CHECK(npy_file(runs / "q/decode/h2o-paper-20.npy").shape == std::vector<std::size_t>{2, 2, kSteps});
}

TEST_CASE("a budget is the same however it is said", "[evict]") {
  const TempDir temp;
  make_small_dump(temp / "d");
  const auto table = [&](const char* option, const char* value) {
    const std::string out = temp / fmt::format("{}{}", option, value);
    const ProcessResult ran =
        run_kvreplay({"evict", temp / "d", "--out", out, "--policy", "h2o,snapkv", option, value, "--quiet"});
    INFO(ran.err);
    CHECK(ran.code == 0);
    return file_text(fs::path(out) / "evictions.csv");
  };
  const std::string ratios = table("--sigma", "0.8,0.3");
  CHECK(table("--keep", "20%,70%") == ratios);
  CHECK(table("--keep", "0.2,0.7") == ratios);
  CHECK(table("--budget", "20%,70%") == ratios);
  const std::string tokens = table("--keep", "12");
  CHECK(table("--budget", "12") == tokens);
  CHECK(contains(tokens, fmt::format(",12,12,{},future,output_error,", 12.0 / 61)));
}

TEST_CASE("a layer's change is set against the residual stream too, where the dump has its norms",
          "[evict]") {
  const TempDir temp;
  const std::string dump = temp / "d";
  make_small_dump(dump);
  const auto run = [&](const std::string& out) {
    succeed({"evict", dump, "--out", out, "--policy", "snapkv", "--keep", "50%"});
    return Evictions(out);
  };
  CHECK_FALSE(run(temp / "without").has("0,", "snapkv,paper,prefill,0.5", "future", "residual_error"));
  // Norms of 2 and 3 everywhere: the ratio of the two layers' errors tells the squares apart.
  const std::size_t positions[] = {70};
  const auto norms = [&](float first, float second) {
    kvreplay::write_npy(fs::path(dump) / "layer_00/residual_norm.npy", positions,
                        std::vector<float>(70, first));
    kvreplay::write_npy(fs::path(dump) / "layer_01/residual_norm.npy", positions,
                        std::vector<float>(70, second));
  };
  norms(2, 3);
  const Evictions twice = run(temp / "2-3");
  norms(1, 1);
  const Evictions once = run(temp / "1-1");
  const std::string which = "snapkv,paper,prefill,0.5";
  for (const char* rows : {"window", "future"}) {
    const double first = once.at("0,", which, rows, "residual_error"),
                 second = once.at("1,", which, rows, "residual_error");
    CHECK(first > 0);
    CHECK(once.at(",", which, rows, "residual_error") == Approx((first + second) / 2).epsilon(1e-12));
    CHECK(twice.at("0,", which, rows, "residual_error") == Approx(first / 4).epsilon(1e-12));
    CHECK(twice.at("1,", which, rows, "residual_error") == Approx(second / 9).epsilon(1e-12));
    CHECK_FALSE(once.has("0,0", which, rows, "residual_error"));
  }
  Json manifest = Json::parse(file_text(dump + "/manifest.json"));
  manifest["output_multiplier"] = {0.5, 3};
  write_file(dump + "/manifest.json", manifest.dump());
  const Evictions multiplied = run(temp / "multiplied");
  for (const auto& [layer, factor] : {std::pair{"0,", 0.25}, {"1,", 9.0}}) {
    CHECK(multiplied.at(layer, which, "future", "residual_error") ==
          Approx(factor * once.at(layer, which, "future", "residual_error")).epsilon(1e-12));
    CHECK(multiplied.at(layer, which, "future", "layer_output_error") ==
          once.at(layer, which, "future", "layer_output_error"));
  }
}

TEST_CASE("a gate between heads and W_O counts where outputs meet it, and in what tokens are worth",
          "[cli][evict]") {
  const TempDir temp;
  const std::string dump = temp / "d";
  make_small_dump(dump);
  const Npy wo = npy_file(dump + "/layer_00/wo.npy");
  const std::size_t n_q = wo.shape[0], d_v = wo.shape[1], d_model = wo.shape[2], rows = 70;
  const auto each_layer = [&](const std::string& name, const Npy& array) {
    for (const char* layer : {"/layer_00/", "/layer_01/"}) write_file(dump + layer + name, array.bytes());
  };
  const auto run = [&](const std::string& out) {
    succeed({"evict", dump, "--out", temp / out, "--policy", "snapkv,oracle", "--keep", "50%", "--precision",
             "f64"});
    return Evictions(temp / out);
  };
  const auto gate = [&](const auto& of) {
    std::vector<float> values;
    for (std::size_t h = 0; h < n_q; ++h)
      for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t c = 0; c < d_v; ++c) values.push_back(static_cast<float>(of(h, r, c)));
    each_layer("gate.npy", npy<float>("<f4", {n_q, rows, d_v}, values));
  };
  const auto layer_error = [](const Evictions& csv, const std::string& on) {
    return csv.at("0,", "snapkv,paper,prefill,0.5", on, "layer_output_error");
  };
  const Evictions plain = run("plain");
  gate([](auto, auto, auto) { return 0.5; });
  const Evictions halved = run("halved");
  // One of channels alone is W_O with its rows multiplied.
  const auto of_channel = [](std::size_t h, auto, std::size_t c) {
    return 0.25 + static_cast<double>((3 * h + 5 * c) % 7);
  };
  gate(of_channel);
  const Evictions gated = run("channels");
  succeed({"verify", dump, "--tokens", "4"});
  // One that lets one row through leaves that row's error.
  const std::size_t last = rows - 1;
  gate([&](auto, std::size_t r, auto) { return r == last ? 1.0 : 0.0; });
  const double of_last = layer_error(run("last"), "future");
  gate([&](auto, std::size_t r, auto) { return r == last ? 0.0 : 1.0; });
  const double of_others = layer_error(run("others"), "future");
  for (const char* on : {"window", "future"}) {
    CHECK(layer_error(halved, on) == Approx(layer_error(plain, on)).epsilon(1e-12));
    for (const char* policy : {"snapkv,paper,prefill,0.5", "oracle,paper,prefill,0.5"})
      CHECK(halved.at("0,0", policy, "future", "eviction_loss") ==
            Approx(plain.at("0,0", policy, "future", "eviction_loss") / 2).epsilon(1e-12));
    CHECK(halved.at("0,0", "snapkv,paper,prefill,0.5", on, "output_error") ==
          plain.at("0,0", "snapkv,paper,prefill,0.5", on, "output_error"));
  }
  CHECK(std::min(of_last, of_others) < layer_error(plain, "future"));
  CHECK(std::max(of_last, of_others) > layer_error(plain, "future"));
  for (const char* layer : {"/layer_00/gate.npy", "/layer_01/gate.npy"}) fs::remove(dump + layer);
  std::vector<float> weights = wo.as<float>();
  for (std::size_t i = 0; i < weights.size(); ++i)
    weights[i] *= static_cast<float>(of_channel(i / (d_v * d_model), 0, i / d_model % d_v));
  each_layer("wo.npy", npy<float>("<f4", wo.shape, weights));
  const Evictions scaled = run("scaled");
  for (const char* head : {"0,0", "0,1"})
    for (const char* policy : {"snapkv,paper,prefill,0.5", "oracle,paper,prefill,0.5"}) {
      const double loss = gated.at(head, policy, "future", "eviction_loss");
      CHECK(loss == Approx(scaled.at(head, policy, "future", "eviction_loss")).epsilon(1e-6));
      CHECK(loss != Approx(plain.at(head, policy, "future", "eviction_loss")).epsilon(1e-2));
    }
  for (const char* on : {"window", "future"})
    CHECK(layer_error(gated, on) == Approx(layer_error(scaled, on)).epsilon(1e-6));
  CHECK(contains(file_text(temp / "last/summary.json"),
                 "a gate stands between the heads' outputs and wo: expected_attention"));
}

TEST_CASE("behind a norm of all heads, W_O multiplies what an eviction leaves of a row as the norm has it",
          "[cli][evict]") {
  const TempDir temp;
  const std::string dump = temp / "d";
  make_small_dump(dump);
  const std::string which = "snapkv,paper,prefill,0.5";
  const auto run = [&](const std::string& out, const std::string& precision) {
    succeed({"evict", dump, "--out", temp / out, "--policy", "snapkv,oracle", "--keep", "50%", "--precision",
             precision});
    return Evictions(temp / out);
  };
  remove_tensor(dump, "wo");
  const Evictions without = run("without", "f64");
  fs::remove_all(dump);
  make_small_dump(dump);
  Json manifest = Json::parse(file_text(dump + "/manifest.json"));
  manifest["output_norm"] = {{"kind", "rms"}, {"eps", 0.01}};
  write_file(dump + "/manifest.json", manifest.dump());
  const Evictions normed = run("normed", "f64"), in_float = run("float", "f32");

  std::map<std::string, std::vector<float>> x;
  for (const char* name : {"q", "k", "v", "wo"})
    x[name] = npy_file(dump + "/layer_00/" + name + ".npy").as<float>();
  const Npy kept = npy_file(temp / "normed/layer_00/kept/snapkv-paper-prefill-31.npy");
  constexpr std::size_t n_q = 4, T = kTokens + kSteps, d = 8;
  const std::size_t d_model = x["wo"].size() / (n_q * d);
  const auto projected = [&](std::size_t i, bool evicted) {
    std::vector<double> o(n_q * d, 0.0), y(d_model, 0.0);
    double sq = 0;
    for (std::size_t h = 0; h < n_q; ++h) {
      double sum = 0;
      for (std::size_t p = 0; p <= i; ++p) {
        if (evicted && p < kTokens && kept.data[h / 2 * kTokens + p] == 0) continue;
        double z = 0;
        for (std::size_t c = 0; c < d; ++c)
          z += double{x["q"][(h * T + i) * d + c]} * x["k"][(h / 2 * T + p) * d + c];
        const double weight = std::exp(z / std::sqrt(8.0));
        sum += weight;
        for (std::size_t c = 0; c < d; ++c) o[h * d + c] += weight * x["v"][(h / 2 * T + p) * d + c];
      }
      for (std::size_t c = 0; c < d; ++c) o[h * d + c] /= sum > 0 ? sum : 1;  // of nothing: 0
    }
    for (const double one : o) sq += one * one;
    for (std::size_t at = 0; at < o.size(); ++at)
      for (std::size_t m = 0; m < d_model; ++m)
        y[m] += o[at] / std::sqrt(sq / (n_q * d) + 0.01) * x["wo"][at * d_model + m];
    return y;
  };
  const auto expected = [&](std::size_t first, std::size_t end) {
    double change = 0, full = 0;
    for (std::size_t i = first; i < end; ++i) {
      const std::vector<double> y = projected(i, false), left = projected(i, true);
      for (std::size_t m = 0; m < d_model; ++m) {
        change += (left[m] - y[m]) * (left[m] - y[m]);
        full += y[m] * y[m];
      }
    }
    return change / full;
  };
  for (const auto& [rows, error] :
       {std::pair{"window", expected(kTokens - 32, kTokens)}, {"future", expected(kTokens, T)}}) {
    CHECK(normed.at("0,", which, rows, "layer_output_error") == Approx(error).epsilon(1e-9));
    CHECK(in_float.at("0,", which, rows, "layer_output_error") == Approx(error).epsilon(1e-4));
  }
  for (const char* head : {"0,0", "0,1"})  // importance is of values as they are
    for (const char* policy : {"snapkv", "oracle"})
      CHECK(normed.at(head, std::string(policy) + ",paper,prefill,0.5", "future", "eviction_loss") ==
            without.at(head, std::string(policy) + ",paper,prefill,0.5", "future", "eviction_loss"));
  CHECK(contains(file_text(temp / "normed/summary.json"), "a norm of all heads' outputs stands before wo"));
}

TEST_CASE("a cache that two layers read is there once, and it is said", "[cli][evict]") {
  const TempDir temp;
  const std::string dump = temp / "d";
  make_small_dump(dump);
  for (const char* name : {"k.npy", "v.npy"})
    fs::copy_file(dump + "/layer_00/" + name, dump + "/layer_01/" + name,
                  fs::copy_options::overwrite_existing);
  const auto bytes = [&](const std::string& out, const std::string& scope) {
    succeed({"evict", dump, "--out", temp / out, "--policy", "h2o", "--budget", "20"});
    return Evictions(temp / out).at(scope, "h2o,paper,prefill,20", "", "bytes");
  };
  const double apart = bytes("apart", ",");
  Json manifest = Json::parse(file_text(dump + "/manifest.json"));
  manifest["cache_of"] = {0, 0};
  write_file(dump + "/manifest.json", manifest.dump());
  CHECK(bytes("shared", ",") == apart / 2);
  CHECK(contains(file_text(temp / "shared/summary.json"), "layer 1 reads the cache of layer 0"));
}

TEST_CASE("scores and kept sets are read whatever their paths and numbers look like", "[cli][evict]") {
  const EvictRuns runs;
  const fs::path folder = runs / "lr=0.1,bs=32";
  fs::create_directory(folder);
  // Ranks, as integers; the same as numbers of which the last four tokens are infinite.
  std::vector<std::int64_t> ranks(2 * 2 * kTokens);
  std::vector<double> scores(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::size_t p = i % kTokens;
    ranks[i] = static_cast<std::int64_t>(p >= kTokens - 4 ? 1000 : p * 37 % kTokens);
    scores[i] = p >= kTokens - 4 ? HUGE_VAL : p == 0 ? -HUGE_VAL : static_cast<double>(ranks[i]);
  }
  write_file(folder / "ranks.npy", npy<std::int64_t>("<i8", {2, 2, kTokens}, ranks).bytes());
  write_file(folder / "scores.npy", npy<double>("<f8", {2, 2, kTokens}, scores).bytes());
  const std::string first = "ranks=" + (folder / "ranks.npy").string(),
                    second = "numbers=" + (folder / "scores.npy").string();
  const std::vector<std::string> policies = {"--policy", "score:ranks,score:numbers", "--budget", "20"};
  const auto run = [&](const std::string& name, std::vector<std::string> more) {
    more.insert(more.end(), policies.begin(), policies.end());
    runs.run(name, more);
    for (const int layer : {0, 1})
      CHECK(runs.kept(name, layer, "score_ranks-paper-prefill-20").data ==
            runs.kept(name, layer, "score_numbers-paper-prefill-20").data);
  };
  run("joined", {"--score", first + "," + second});
  run("repeated", {"--score", first, "--score", second});
  std::string escaped = first;
  escaped.insert(escaped.find(','), "\\");
  run("escaped", {"--score", escaped + ",\"" + second + "\""});
  write_file(runs / "c.toml", fmt::format("score = ['{}', '{}']\n", first, second));
  run("listed", {"--config", runs / "c.toml"});
  scores[3 * kTokens + 7] = std::nan("");
  write_file(folder / "scores.npy", npy<double>("<f8", {2, 2, kTokens}, scores).bytes());
  const ProcessResult refused = run_kvreplay(
      {"evict", runs.dump(), "--out", runs / "refused", "--policy", "score:numbers", "--score", second});
  CHECK(refused.code == 2);
  CHECK(contains(refused.err, "scores.npy: expected numbers, found NaN at layer 1, head 1, position 7"));
}

TEST_CASE("whole pages are evicted, of a head or of all heads of a layer", "[cli][evict]") {
  const EvictRuns runs;
  constexpr std::size_t kPage = 8, kFull = kTokens / kPage, kShort = kTokens % kPage;
  std::vector<double> scores(2 * 2 * kTokens);
  for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = static_cast<double>(i * i * 7919 % 1009);
  write_file(runs / "mine.npy", npy<double>("<f8", {2, 2, kTokens}, scores).bytes());
  const ProcessResult done =
      runs.run("r", {"--score", "mine=" + (runs / "mine.npy").string(), "--policy",
                     "score:mine[page=8,page_heads=head/layer],score:mine[page=8,page_by=max],greedy_exact,"
                     "snapkv[page=8],tova[page=8]",
                     "--budget", "30,29,40", "--phase", "prefill,blockwise:16"});
  CHECK(contains(done.out + file_text(runs / "r/summary.json"),
                 "whole pages keep 29 of the 30 tokens of budget 30: "));
  // The last page is there, and three or four full ones: those of the largest mean or maximum, of one head or
  // of both.
  const auto expected = [&](std::size_t layer, std::vector<std::size_t> heads, bool by_max,
                            std::size_t full) {
    std::vector<std::pair<double, std::size_t>> pages;
    for (std::size_t page = 0; page < kFull; ++page) {
      double worth = 0;
      for (std::size_t p = page * kPage; p < (page + 1) * kPage; ++p) {
        double token = 0;
        for (const std::size_t head : heads) token += scores[(2 * layer + head) * kTokens + p];
        worth = by_max ? std::max(worth, token) : worth + token;
      }
      pages.emplace_back(-worth, page);
    }
    std::sort(pages.begin(), pages.end());
    std::string kept(kTokens, '\0');
    for (std::size_t p = kTokens - kShort; p < kTokens; ++p) kept[p] = '\x01';
    for (std::size_t n = 0; n < full; ++n)
      for (std::size_t p = 0; p < kPage; ++p) kept[pages[n].second * kPage + p] = '\x01';
    return kept;
  };
  for (const std::size_t layer : {0, 1})
    for (const std::size_t full : {3, 4}) {
      const auto kept = [&](const char* policy) {
        return runs
            .kept("r", static_cast<int>(layer),
                  fmt::format("{}-paper-prefill-{}", policy, kShort + full * kPage))
            .data;
      };
      CHECK(kept("score_mine[page=8,page_heads=head]") ==
            expected(layer, {0}, false, full) + expected(layer, {1}, false, full));
      CHECK(kept("score_mine[page=8,page_by=max]") ==
            expected(layer, {0}, true, full) + expected(layer, {1}, true, full));
      CHECK(kept("score_mine[page=8,page_heads=layer]") ==
            expected(layer, {0, 1}, false, full) + expected(layer, {0, 1}, false, full));
    }
  const Evictions csv(runs / "r");
  std::set<std::string> counts;
  for (const CsvRow& row : csv.rows())
    if (contains(row.at("policy"), "page=8")) counts.insert(row.at("budget") + " " + row.at("kept"));
  CHECK(counts == std::set<std::string>{"29 29", "30 29", "40 37"});
  for (const char* budget : {"30", "29"}) {
    const std::string run = fmt::format("snapkv[page=8],paper,prefill,{}", budget);
    CHECK(csv.at("0,1", run, "", "bytes") == 29 * kBytesPerToken);
    // Compared at what is kept, whatever the budget was.
    CHECK(csv.at("0,1", run, "window", "excess_over_greedy_exact") ==
          csv.at("0,1", run, "window", "output_error") -
              csv.at("0,1", "greedy_exact,paper,prefill,29", "window", "output_error"));
  }
}

TEST_CASE("whole pages under several semantics", "[cli][evict]") {
  const EvictRuns runs;
  runs.run("d", {"--policy", "tova[page=8],snapkv[page=8]", "--sigma", "0.5", "--diff", "paper,kvpress"});
  const auto table =
      csv_rows(runs / "d/diff.csv", "layer,kv_head,policy,phase,budget,semantics,other,rows,metric,value");
  for (const CsvRow& row : table)
    if (row.at("layer") == "1" && row.at("kv_head") == "0" && row.at("metric") == "kept")
      CHECK(row.at("value") == "29");
  for (const char* policy : {"tova[page=8]", "snapkv[page=8]"})
    CHECK(
        npy_file(runs / "d" / fmt::format("layer_01/diff/{}-paper-kvpress-prefill-0.5.npy", policy)).shape ==
        std::vector<std::size_t>{2, kTokens});
}

TEST_CASE("seven query heads that keep equally many tokens say how many", "[cli][evict]") {
  const TempDir temp;
  succeed({"synth", temp / "dump", "--layers", "1", "--q-heads", "14", "--kv-heads", "2", "--head-dim", "8",
           "--prompt", "237", "--decode", "4", "--quiet"});
  for (const char* tokens : {"180", "101", "43", "3"}) {  // a seventh of each, seven times, is not always it
    succeed({"evict", temp / "dump", "--out", temp / "r", "--policy", "streaming", "--budget", tokens,
             "--per-query-head", "--quiet", "--force"});
    const Evictions evictions(temp / "r");
    for (const CsvRow& row : evictions.rows()) CHECK(row.at("kept") == tokens);
    CHECK(fs::exists(temp / fmt::format("r/layer_00/kept/streaming-paper-prefill-{}.npy", tokens)));
  }
}

TEST_CASE("what is kept of each query head can be given back", "[cli][evict]") {
  const EvictRuns runs;
  const std::vector<std::string> apart = {"--per-query-head", "--policy", "h2o", "--budget", "20"};
  runs.run("r", apart);
  std::vector<std::uint8_t> all;
  for (const int layer : {0, 1})
    for (const char kept : runs.kept("r", layer, "h2o-paper-prefill-20").data)
      all.push_back(static_cast<std::uint8_t>(kept));
  const std::size_t heads = all.size() / 2 / kTokens;
  REQUIRE(heads > 2);
  write_file(runs / "mine.npy", npy<std::uint8_t>("|b1", {2, heads, kTokens}, all).bytes());
  std::vector<std::string> again = apart;
  again.insert(again.end(), {"--kept", "mine=" + (runs / "mine.npy").string()});
  runs.run("again", again);
  const Evictions csv(runs / "again");
  for (const std::string& head : kHeads)
    CHECK(csv.at(head, "mine,given,prefill,", "future", "output_error") ==
          csv.at(head, "h2o,paper,prefill,20", "future", "output_error"));
}
