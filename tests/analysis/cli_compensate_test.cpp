#include "tests/analysis/channel_runs.hpp"
#include "tests/support/catch.hpp"

#include <nlohmann/json.hpp>

#include <cmath>

// `kvreplay evict --compensate`: what kept tokens make up for evicted ones.

using namespace kvreplay::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

const std::vector<std::string> kScopes = {"0,0", "0,1", "0,", "1,0", "1,1", "1,", ","};
const std::vector<std::string> kMethods = {"none", "mass", "values", "fit", "mean"};
const std::string kAll = "none,mass,values,fit,mean";

/// compensation.csv by what a row is of; `run` is "policy,semantics,phase,budget,method".
class CompensatedFigures {
 public:
  explicit CompensatedFigures(const fs::path& folder)
      : rows_(
            csv_rows(folder / "compensation.csv",
                     "layer,kv_head,policy,semantics,phase,budget,kept,method,reference,rows,metric,value")) {
    for (CsvRow& row : rows_) {
      const std::string scope = row["layer"] + "," + row["kv_head"],
                        run = row["policy"] + "," + row["semantics"] + "," + row["phase"] + "," +
                              row["budget"] + "," + row["method"];
      INFO(scope << " " << run << " " << row["rows"] << " " << row["metric"]);
      REQUIRE(values_.emplace(std::tuple(scope, run, row["rows"], row["metric"]), std::stod(row["value"]))
                  .second);
    }
  }
  bool has(const std::string& scope, const std::string& run, const std::string& rows,
           const std::string& metric) const {
    return values_.count({scope, run, rows, metric}) == 1;
  }
  double at(const std::string& scope, const std::string& run, const std::string& rows,
            const std::string& metric) const {
    INFO(scope << " " << run << " " << rows << " " << metric);
    REQUIRE(has(scope, run, rows, metric));
    return values_.at({scope, run, rows, metric});
  }
  const std::vector<CsvRow>& rows() const { return rows_; }

 private:
  std::vector<CsvRow> rows_;
  std::map<std::tuple<std::string, std::string, std::string, std::string>, double> values_;
};

}  // namespace

TEST_CASE("what compensates is measured beside what is kept as it was", "[cli][compensate]") {
  const TempDir temp;
  make_small_dump(temp / "dump", {"--gradients", "3"});
  run_command("evict", temp / "dump", temp / "r",
              {"--policy", "h2o,snapkv", "--budget", "20,40", "--compensate", kAll});
  const Evictions evictions(temp / "r");
  const CompensatedFigures csv(temp / "r");
  for (const std::string policy : {"h2o", "snapkv"})
    for (const std::string budget : {"20", "40"})
      for (const std::string& scope : kScopes) {
        const std::string run = policy + ",paper,prefill," + budget;
        INFO(scope << " " << run);
        for (const std::string rows : {"window", "future"}) {
          for (const std::string metric : {"output_error", "layer_output_error", "loss_row", "loss_head",
                                           "loss_layer", "loss_step", "loss_joint", "dnll"}) {
            CHECK(csv.has(scope, run + ",none", rows, metric) == evictions.has(scope, run, rows, metric));
            if (evictions.has(scope, run, rows, metric))
              CHECK(csv.at(scope, run + ",none", rows, metric) ==
                    Approx(evictions.at(scope, run, rows, metric)).epsilon(1e-9).margin(1e-15));
          }
          CHECK(csv.at(scope, run + ",none", rows, "values") == 0);
          CHECK(csv.at(scope, run + ",mass", rows, "values") == 0);
          CHECK(csv.at(scope, run + ",fit", rows, "values") > 0);
          CHECK(csv.at(scope, run + ",none", rows, "selection") ==
                csv.at(scope, run + ",fit", rows, "selection"));
          CHECK(csv.at(scope, run + ",fit", rows, "mass") == csv.at(scope, run + ",mass", rows, "mass"));
          CHECK_FALSE(csv.has(scope, run + ",mean", rows, "selection"));
        }
        // 18 rows of two query heads measure no bound of 20 tokens.
        CHECK_FALSE(csv.has(scope, run + ",none", "future", "bound"));
        // On the rows that are fitted to nothing is lost by fitting, and no values do better than the bound.
        const auto reference = [&](const std::string& method, const std::string& metric) {
          return csv.at(scope, run + "," + method, "reference", metric);
        };
        CHECK(reference("values", "output_error") <= reference("none", "output_error"));
        CHECK(reference("fit", "output_error") <= reference("mass", "output_error"));
        CHECK(reference("none", "selection") == Approx(reference("none", "output_error")));
        CHECK(reference("none", "bound") == reference("values", "bound"));
        CHECK(reference("mass", "bound") == reference("fit", "bound"));
        for (const std::string method : {"none", "mass", "values", "fit"})
          CHECK(reference(method, "bound") <= reference(method, "output_error"));
        // 8 + 8 numbers of two bytes a token, and four bytes for a bias.
        const double tokens = std::stod(budget) * (scope == ","          ? 4
                                                   : scope.back() == ',' ? 2
                                                                         : 1),
                     heads = scope == ","          ? 4
                             : scope.back() == ',' ? 2
                                                   : 1;
        CHECK(csv.at(scope, run + ",none", "", "bytes") == tokens * 32);
        CHECK(csv.at(scope, run + ",values", "", "bytes") == tokens * 32);
        CHECK(csv.at(scope, run + ",fit", "", "bytes") == tokens * 36);
        CHECK(csv.at(scope, run + ",mean", "", "bytes") == (tokens + heads) * 36);
      }
  for (const CsvRow& row : csv.rows()) {
    CHECK(row.at("reference") == "shifted");
    CHECK(row.at("kept") == row.at("budget"));
  }
  const Json summary = Json::parse(file_text(temp / "r/summary.json"));
  CHECK(summary["totals"]["compensation_rows"] == csv.rows().size());
  CHECK(summary["options"]["evict"]["compensate"] == kMethods);
  CHECK(summary["options"]["evict"]["reference"] == "shifted");
  CHECK(summary["options"]["evict"]["ridges"].size() == 7);
  const Npy map = npy_file(temp / "r/maps/snapkv-paper-prefill-20-fit~future~output_error.npy");
  CHECK(map.shape == std::vector<std::size_t>{2, 2});
  CHECK(map.as<double>()[3] == csv.at("1,1", "snapkv,paper,prefill,20,fit", "future", "output_error"));
}

TEST_CASE("compensated caches are written as they were measured", "[cli][compensate]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  run_command("evict", temp / "dump", temp / "r",
              {"--policy", "snapkv", "--budget", "20", "--compensate", kAll});
  const fs::path folder = temp / "r/layer_01/compensated";
  CHECK(names_in(folder) ==
        std::set<std::string>{"snapkv-paper-prefill-20-fit", "snapkv-paper-prefill-20-mass",
                              "snapkv-paper-prefill-20-mean", "snapkv-paper-prefill-20-values"});
  const std::string kept = npy_file(temp / "r/layer_01/kept/snapkv-paper-prefill-20.npy").data;
  const std::vector<float> v = npy_file(fs::path(temp / "dump/layer_01/v.npy")).as<float>();
  for (const std::string method : {"mass", "values", "fit", "mean"})
    for (std::size_t g = 0; g < 2; ++g) {
      INFO(method << " " << g);
      const fs::path files = folder / ("snapkv-paper-prefill-20-" + method);
      const auto array = [&](const std::string& name) {
        return npy_file(files / fmt::format("{}_{}.npy", name, g));
      };
      const std::vector<std::int32_t> tokens = array("tokens").as<std::int32_t>();
      const std::vector<float> bias = array("bias").as<float>(), values = array("values").as<float>();
      const std::size_t m = method == "mean" ? 21 : 20;
      CHECK(array("tokens").descr == "<i4");
      CHECK(array("values").shape == std::vector<std::size_t>{m, 8});
      REQUIRE(tokens.size() == m);
      REQUIRE(bias.size() == m);
      std::size_t of_kept = 0, changed = 0;
      for (std::size_t j = 0; j < m; ++j) {
        of_kept += static_cast<std::size_t>(kept[g * 61 + static_cast<std::size_t>(tokens[j])]);
        for (std::size_t c = 0; c < 8; ++c)
          changed += values[j * 8 + c] != v[(g * 70 + static_cast<std::size_t>(tokens[j])) * 8 + c] ? 1 : 0;
      }
      CHECK(of_kept == 20);
      const bool fitted = method == "values" || method == "fit";
      CHECK((changed > 100) == fitted);
      CHECK((std::count(bias.begin(), bias.end(), 0.0F) == static_cast<std::ptrdiff_t>(m)) ==
            (method == "values"));
      if (method == "mean") CHECK(*std::max_element(bias.begin(), bias.end()) == Approx(std::log(41.0)));
    }
}

TEST_CASE("a budget of the whole prompt leaves nothing to make up for", "[cli][compensate]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  run_command("evict", temp / "dump", temp / "r",
              {"--policy", "h2o", "--budget", "61", "--compensate", kAll});
  const CompensatedFigures csv(temp / "r");
  for (const std::string& method : kMethods)
    for (const std::string rows : {"window", "future"})
      CHECK(csv.at(",", "h2o,paper,prefill,61," + method, rows, "output_error") == 0);
}

TEST_CASE("compensation has the same bytes with threads, in parts and when it is resumed",
          "[cli][compensate]") {
  const TempDir temp;
  make_small_dump(temp / "dump", {"--gradients", "2"});
  const std::vector<std::string> options = {"--policy", "snapkv,keydiff",       "--budget",     "15",
                                            "--phase",  "prefill,blockwise:16", "--compensate", kAll};
  run_command("evict", temp / "dump", temp / "whole", options);
  run_command("evict", temp / "dump", temp / "three", joined(options, {"--threads", "3"}));
  CHECK(difference(temp / "whole", temp / "three") == "");
  run_command("evict", temp / "dump", temp / "1", joined(options, {"--shard", "1/2"}));
  run_command("evict", temp / "dump", temp / "2", joined(options, {"--shard", "2/2"}));
  succeed({"merge", temp / "1", temp / "2", "--out", temp / "merged", "--quiet"});
  CHECK(difference(temp / "whole", temp / "merged") == "");
  CHECK(fs::exists(temp / "whole/layer_00/compensated/keydiff-paper-blockwise_16-15-fit"));
}

TEST_CASE("other reference rows are fitted to where they are asked for, or all there are",
          "[cli][compensate]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_small_dump(dump);
  const std::vector<std::string> options = {"--policy", "h2o", "--budget", "20", "--compensate", "none,fit"};
  run_command("evict", dump, temp / "window", joined(options, {"--reference", "window"}));
  run_command("evict", dump, temp / "few", joined(options, {"--reference-rows", "16"}));
  run_command("evict", dump, temp / "all", options);
  const std::string fit = "h2o,paper,prefill,20,fit";
  const CompensatedFigures window(temp / "window"), few(temp / "few"), all(temp / "all");
  CHECK(window.rows().front().at("reference") == "window");
  CHECK(window.at(",", fit, "reference", "output_error") != all.at(",", fit, "reference", "output_error"));
  CHECK(few.at(",", fit, "reference", "output_error") != all.at(",", fit, "reference", "output_error"));
  CHECK(contains(file_text(temp / "few/summary.json"), "fits look at 16 of the prompt's 61 queries"));

  Json manifest = Json::parse(file_text(dump + "/manifest.json"));
  manifest.erase("rope");
  write_file(dump + "/manifest.json", manifest.dump());
  run_command("evict", dump, temp / "unrotated", options);
  CHECK(CompensatedFigures(temp / "unrotated").rows().front().at("reference") == "window");
  CHECK(contains(refusal({"evict", dump, "--compensate", "fit", "--reference", "shifted"}, temp / "refused"),
                 "--reference: shifted is unavailable: "));
}

TEST_CASE("a kept set of the user's is compensated too", "[cli][compensate]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  std::vector<std::uint8_t> kept(2 * 2 * 61, 0);
  for (std::size_t i = 0; i < kept.size(); ++i) kept[i] = i % 3 == 0 ? 1 : 0;
  write_file(temp / "mine.npy", npy<std::uint8_t>("|b1", {2, 2, 61}, kept).bytes());
  run_command(
      "evict", temp / "dump", temp / "r",
      {"--policy", "none", "--kept", "mine=" + std::string(temp / "mine.npy"), "--compensate", "none,fit"});
  const CompensatedFigures csv(temp / "r");
  CHECK(csv.at(",", "mine,given,prefill,,fit", "reference", "output_error") <
        csv.at(",", "mine,given,prefill,,none", "reference", "output_error"));
  CHECK(fs::exists(temp / "r/layer_00/compensated/mine-given-prefill-mixed-fit"));
}

TEST_CASE("a second reading is asked for a fit, and for a policy of its own", "[cli][compensate]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_small_dump(dump);
  add_second_reading(dump, 100);
  run_command("evict", dump, temp / "r",
              {"--policy", "kvzip,snapkv,h2o+kvzip,score:kvzip", "--budget", "20", "--compensate",
               "none,values,fit", "--reference", "repeat", "--reference-rows", "90"});
  const CompensatedFigures csv(temp / "r");
  for (const CsvRow& row : csv.rows()) CHECK(row.at("reference") == "repeat");
  for (const std::string policy : {"kvzip", "snapkv", "h2o+kvzip", "score:kvzip"}) {
    const std::string run = policy + ",paper,prefill,20,";
    for (const std::string& scope : kScopes)
      CHECK(csv.at(scope, run + "fit", "reference", "output_error") <
            csv.at(scope, run + "none", "reference", "output_error"));
  }
  CHECK(contains(file_text(temp / "r/summary.json"), "fits look at 90 of the second reading's 100 queries"));
  CHECK(contains(
      refusal({"evict", dump, "--prompt-len", "60", "--compensate", "fit", "--reference", "repeat"},
              temp / "refused"),
      "--reference: repeat is unavailable: the dump's second reading is that of a prompt of 61 tokens"));
  CHECK(contains(refusal({"evict", dump, "--prompt-len", "60", "--policy", "kvzip"}, temp / "refused"),
                 "kvzip is unavailable: the dump's second reading"));
  for (const char* phase : {"decode", "blockwise:8"})
    CHECK(contains(refusal({"evict", dump, "--policy", "kvzip", "--phase", phase}, temp / "refused"),
                   "a second reading is that of the whole prompt"));
}

TEST_CASE("nothing is written of a compensation that nobody asks for", "[cli][compensate]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  run_command("evict", temp / "dump", temp / "plain", {"--policy", "h2o", "--budget", "20"});
  CHECK_FALSE(fs::exists(temp / "plain/compensation.csv"));
  CHECK_FALSE(contains(file_text(temp / "plain/summary.json"), "compensate"));
  CHECK_FALSE(contains(file_text(temp / "plain/summary.json"), "reference"));
}

TEST_CASE("what a fit makes up for is evicted first", "[cli][compensate]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_small_dump(dump);
  run_command("evict", dump, temp / "r",
              {"--policy", "h2o,leverage,greedy_leverage,exchange+greedy_leverage", "--budget", "20,61",
               "--compensate", "none,fit"});
  const CompensatedFigures csv(temp / "r");
  const auto fitted = [&](const std::string& policy) {
    return csv.at(",", policy + ",paper,prefill,20,fit", "reference", "output_error");
  };
  CHECK(fitted("greedy_leverage") < fitted("leverage"));
  CHECK(fitted("greedy_leverage") < fitted("h2o"));
  const Evictions evictions(temp / "r");
  for (const std::string policy : {"leverage", "greedy_leverage"})
    CHECK(evictions.at(",", policy + ",paper,prefill,61", "window", "output_error") == 0);
  // A swap by the error finds something to gain on the window.
  CHECK(evictions.at(",", "exchange+greedy_leverage,paper,prefill,20", "window", "output_error") <
        evictions.at(",", "greedy_leverage,paper,prefill,20", "window", "output_error"));
  // The same kept sets on any number of threads.
  run_command("evict", dump, temp / "threads",
              {"--policy", "greedy_leverage", "--budget", "20", "--threads", "3"});
  const std::string kept = "layer_01/kept/greedy_leverage-paper-prefill-20.npy";
  REQUIRE(fs::exists(temp / "threads" / kept));
  CHECK(file_text(temp / "threads" / kept) == file_text(temp / "r" / kept));

  CHECK(contains(refusal({"evict", dump, "--policy", "exchange", "--by", "leverage"}, temp / "refused"),
                 "expected error or loss, found 'leverage'"));
  run_command("tokens", dump, temp / "asked", {"--metrics", "attn,leverage"});
  CHECK(fs::exists(temp / "asked/layer_00/tokens/leverage.npy"));
  run_command("tokens", dump, temp / "all", {});
  CHECK_FALSE(fs::exists(temp / "all/layer_00/tokens/leverage.npy"));
  Json manifest = Json::parse(file_text(dump + "/manifest.json"));
  manifest.erase("rope");
  write_file(dump + "/manifest.json", manifest.dump());
  CHECK(contains(refusal({"evict", dump, "--policy", "greedy_leverage"}, temp / "refused"),
                 "--policy: greedy_leverage is unavailable: "));
}

TEST_CASE("what fits will take is said before it is paid, where it is long", "[cli][compensate]") {
  const TempDir temp;
  succeed({"synth", temp / "dump", "--layers", "48", "--q-heads", "1", "--kv-heads", "1", "--head-dim", "16",
           "--prompt", "2048", "--decode", "4"});
  const auto run = [&](const std::string& methods) {
    return succeed({"evict", temp / "dump", "--out", temp / "r", "--force", "--layers", "0", "--policy",
                    "knorm", "--keep", "50%", "--window", "2048", "--compensate", methods});
  };
  const std::string said = run("values").err;
  CHECK(said.find("note: fits take about 0.47 s of one core in each KV head") != std::string::npos);
  CHECK(said.find("in all 48 of the dump: 1 of up to 1024 tokens to 2048 queries (--compensate)") !=
        std::string::npos);
  CHECK(run("mean").err.find("fits take") == std::string::npos);
}
