#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

// A score of the user's beside the built-in ones, over one dump and several, and the options of one policy.

using namespace kvreplay::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr const char* kAgreement = "layer,kv_head,score,reference,rows,window,reserve,metric,value";

/// [2, 2, l]: no two values of a head alike, and no order by position.
std::vector<double> shuffled(std::size_t l, double seed) {
  std::vector<double> values(2 * 2 * l);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double x = static_cast<double>((i * 37) % values.size()) * seed;
    values[i] = x - std::floor(x);
  }
  return values;
}
void write_score(const fs::path& path, std::size_t l, double seed = 0.7548776662) {
  write_file(path, npy("<f8", {2, 2, l}, shuffled(l, seed)).bytes());
}

/// The largest `keep` of each head, ties to the lower position.
std::vector<std::uint8_t> largest_of(const std::vector<double>& score, std::size_t l, std::size_t keep) {
  std::vector<std::uint8_t> kept(score.size(), 0);
  for (std::size_t first = 0; first < score.size(); first += l) {
    std::vector<std::size_t> order(l);
    std::iota(order.begin(), order.end(), first);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return score[a] > score[b]; });
    for (std::size_t i = 0; i < keep; ++i) kept[order[i]] = 1;
  }
  return kept;
}

std::vector<std::uint8_t> kept_in(const fs::path& results, const std::string& name) {
  std::vector<std::uint8_t> all;
  for (const char* layer : {"layer_00", "layer_01"}) {
    const auto part = npy_file(results / layer / "kept" / (name + ".npy")).as<std::uint8_t>();
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

}  // namespace

TEST_CASE("score:NAME keeps what the score has largest, and nothing else", "[cli][evict][own]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  write_score(temp / "mine.npy", 61);
  const std::string given = "mine=" + (temp / "mine.npy").string();
  succeed({"evict", temp / "dump", "--out", temp / "r", "--score", given, "--policy",
           "score:mine,score:knorm,knorm", "--sigma", "0.5", "--diff", "paper,official,kvpress", "--phase",
           "prefill,blockwise:16,decode"});
  const std::vector<double> score = shuffled(61, 0.7548776662);
  CHECK(kept_in(temp / "r", "score_mine-paper-prefill-31") == largest_of(score, 61, 31));
  CHECK(kept_in(temp / "r", "score_mine-official-prefill-31") == largest_of(score, 61, 31));
  CHECK(kept_in(temp / "r", "score_mine-kvpress-prefill-30") == largest_of(score, 61, 30));
  for (const char* phase : {"prefill", "blockwise_16", "decode"})
    CHECK(kept_in(temp / "r", fmt::format("score_knorm-paper-{}-31", phase)) ==
          kept_in(temp / "r", fmt::format("knorm-paper-{}-31", phase)));
  const Evictions csv(temp / "r");
  CHECK(csv.has(",", "score:mine,kvpress,prefill,0.5", "future", "output_error"));
  CHECK(csv.at(",", "score:knorm,paper,decode,0.5", "future", "output_error") ==
        csv.at(",", "knorm,paper,decode,0.5", "future", "output_error"));
  CHECK(fs::exists(temp / "r/decode/score_knorm-paper-0.5.npy"));
  CHECK(fs::exists(temp / "r/maps/score_mine-paper-prefill-31~future~output_error.npy"));
  CHECK(fs::exists(temp / "r/layer_00/diff/score_mine-paper-kvpress-prefill-0.5.npy"));
  const std::string left = Json::parse(file_text(temp / "r/summary.json"))["left_out"].dump();
  CHECK(contains(left, "score:mine (paper) in phase blockwise:16"));
  CHECK(contains(left, "score:mine (kvpress) in phase decode"));
  succeed({"report", temp / "r"});
}

TEST_CASE("a score that nothing uses is an error which says how it is used", "[cli][own]") {
  const TempDir temp;
  const std::string dump = temp / "dump", file = temp / "mine.npy";
  make_small_dump(dump);
  write_score(file, 61);
  const auto error = [&](const std::vector<std::string>& command) {
    return refusal(joined(command, {"--score", "mine=" + file}), temp / "r");
  };
  CHECK(contains(error({"evict", dump, "--policy", "snapkv"}),
                 "--score mine: no policy uses it: --policy score:mine, or snapkv+mine"));
  CHECK(
      contains(error({"budget", dump, "--order", "snapkv"}), "--score mine: no order uses it: --order mine"));
  CHECK(contains(error({"tokens", dump, "--metrics", "attn,key"}),
                 "--score mine: no exact error and no oracle among --metrics to compare it with"));
}

TEST_CASE("tokens compares a score of the user's as it does a metric of the same values",
          "[cli][tokens][own]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_small_dump(dump);
  succeed({"tokens", dump, "--out", temp / "value", "--precision", "f64"});
  Npy mine = npy_file(temp / "value/layer_00/tokens/value.npy");
  mine.data += npy_file(temp / "value/layer_01/tokens/value.npy").data;
  mine.shape.insert(mine.shape.begin(), 2);
  write_file(temp / "mine.npy", mine.bytes());
  const std::string given = "mine=" + (temp / "mine.npy").string();
  const std::string more = GENERATE("", "--per-query-head");
  succeed(joined(
      {"tokens", dump, "--out", temp / "r", "--precision", "f64", "--reserve", "0,8", "--score", given},
      more.empty() ? std::vector<std::string>{} : std::vector<std::string>{more}));
  std::map<std::string, std::vector<std::string>> figures;
  for (const CsvRow& row : csv_rows(temp / "r/agreement.csv", kAgreement))
    if (row.at("metric") != "rel_l1" && row.at("reference") != "exact_value")
      figures[row.at("score")].push_back(fmt::format("{} {} {} {} {} {} {}", row.at("layer"),
                                                     row.at("kv_head"), row.at("reference"), row.at("rows"),
                                                     row.at("reserve"), row.at("metric"), row.at("value")));
  CHECK_FALSE(figures["mine"].empty());
  CHECK(figures["mine"] == figures["value"]);
  CHECK(file_text(temp / "r/maps/mine~exact_remove~spearman.npy") ==
        file_text(temp / "r/maps/value~exact_remove~spearman.npy"));
  if (more.empty())
    CHECK(file_text(temp / "r/layer_01/tokens/mine.npy") == file_text(temp / "r/layer_01/tokens/value.npy"));
  else
    CHECK(npy_file(temp / "r/layer_01/tokens/mine.npy").shape == std::vector<std::size_t>{4, 61});
  CHECK_FALSE(contains(file_text(temp / "r/heads.csv"), "mine"));
  CHECK(Json::parse(file_text(temp / "r/summary.json"))["options"]["tokens"]["scores"].contains("mine"));
  // what is not asked for stays as it was
  succeed({"tokens", dump, "--out", temp / "again", "--precision", "f64"});
  CHECK(difference(temp / "value", temp / "again").empty());
  succeed({"report", temp / "r"});
  CHECK(contains(file_text(temp / "r/report/index.html"), "\"mine\""));
}

TEST_CASE("options of one policy are those of all, for it alone", "[cli][evict][own]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_small_dump(dump);
  succeed({"evict", dump, "--out", temp / "r", "--budget", "25", "--policy",
           "snapkv,snapkv[window=16,pool=5],snapkv+joint[window=16],h2o[sinks=2,recent=3],h2o", "--phase",
           "prefill,decode"});
  succeed({"evict", dump, "--out", temp / "w", "--budget", "25", "--policy", "snapkv", "--window", "16",
           "--pool", "5"});
  succeed(
      {"evict", dump, "--out", temp / "j", "--budget", "25", "--policy", "snapkv+joint", "--window", "16"});
  succeed({"evict", dump, "--out", temp / "p", "--budget", "25", "--policy", "h2o", "--sinks", "2",
           "--recent", "3"});
  succeed({"evict", dump, "--out", temp / "own", "--budget", "25", "--policy", "snapkv,h2o"});
  const auto kept = [&](const char* folder, const std::string& policy) {
    return kept_in(temp / folder, policy + "-paper-prefill-25");
  };
  CHECK(kept("r", "snapkv[window=16,pool=5]") == kept("w", "snapkv"));
  CHECK(kept("r", "snapkv+joint[window=16]") == kept("j", "snapkv+joint"));
  CHECK(kept("r", "h2o[sinks=2,recent=3]") == kept("p", "h2o"));
  CHECK(kept("r", "snapkv") == kept("own", "snapkv"));
  CHECK(kept("r", "h2o") == kept("own", "h2o"));
  CHECK(kept("r", "snapkv") != kept("w", "snapkv"));
  const Evictions csv(temp / "r"), all(temp / "w");
  CHECK(csv.at(",", "snapkv[window=16,pool=5],paper,prefill,25", "future", "output_error") ==
        all.at(",", "snapkv,paper,prefill,25", "future", "output_error"));
  CHECK(contains(file_text(temp / "r/evictions.csv"), ",\"snapkv[window=16,pool=5]\",paper,prefill,25,25,"));
  CHECK(fs::exists(temp / "r/decode/snapkv[window=16,pool=5]-paper-25.npy"));
  // what is measured on the window rows follows --window alone
  CHECK(csv.at(",", "snapkv[window=16,pool=5],paper,prefill,25", "window", "output_error") !=
        all.at(",", "snapkv,paper,prefill,25", "window", "output_error"));
  write_file(
      temp / "list.toml",
      "budget = 25\nphase = [\"prefill\", \"decode\"]\npolicy = [\"snapkv\", \"snapkv[window=16,pool=5]\", "
      "\"snapkv+joint[window=16]\", \"h2o[sinks=2,recent=3]\", \"h2o\"]\n");
  succeed({"evict", dump, "--out", temp / "toml", "--config", temp / "list.toml"});
  CHECK(difference(temp / "r", temp / "toml").empty());
  succeed({"report", temp / "r"});
  succeed({"compare", temp / "r", temp / "own"});
}

TEST_CASE("over several dumps each has its own array, and results as alone", "[cli][many][own]") {
  const TempDir temp;
  const std::string a = temp / "dumps/a", b = temp / "dumps/b", again = temp / "other/a";
  make_small_dump(a, {"--seed", "1"});
  make_small_dump(b, {"--seed", "2", "--prompt", "47"});
  make_small_dump(again, {"--seed", "3"});
  fs::create_directory(temp / "scores");
  write_score(temp / "scores/a.npy", 61);
  write_score(temp / "scores/b.npy", 47);
  write_score(temp / "scores/a-2.npy", 61, 0.5698402910);
  const std::vector<std::string> evict = {"--policy", "snapkv,score:mine", "--quiet"};
  succeed(joined({"evict", a, b, again, "--out", temp / "pattern", "--score",
                  "mine=" + (temp / "scores/{dump}.npy").string()},
                 evict));
  succeed(joined(
      {"evict", a, b, again, "--out", temp / "folder", "--score", "mine=" + (temp / "scores").string()},
      evict));
  CHECK(difference(temp / "pattern", temp / "folder").empty());
  for (const auto& [name, dump] : {std::pair("a", a), std::pair("b", b), std::pair("a-2", again)}) {
    const fs::path alone = temp / (std::string("alone_") + name);
    succeed(joined({"evict", dump, "--out", alone, "--score",
                    fmt::format("mine={}/{}.npy", (temp / "scores").string(), name)},
                   evict));
    CHECK(difference(temp / "pattern" / name, alone).empty());
  }
  CHECK(contains(file_text(temp / "pattern/evictions_over_dumps.csv"), ",score:mine,"));
  succeed({"tokens", a, b, again, "--out", temp / "tokens", "--score", "mine=" + (temp / "scores").string(),
           "--metrics", "attn,exact_remove"});
  CHECK(contains(file_text(temp / "tokens/agreement_over_dumps.csv"), ",mine,exact_remove,"));
  succeed({"evict", a, "--out", temp / "one", "--score", "mine=" + (temp / "scores").string(), "--policy",
           "score:mine"});

  const auto error = [&](const std::string& command, const std::string& path) {
    return refusal({command, a, b, again, "--score", "mine=" + path}, temp / "r");
  };
  for (const char* command : {"evict", "tokens", "budget", "analyze"})
    CHECK(contains(
        error(command, temp / "scores/a.npy"),
        "--score: expected an array for each of the 3 dumps: mine=PATH with {dump} in it, or a folder "
        "with one <dump>.npy a dump, found '" +
            (temp / "scores/a.npy").string() + "'"));
  write_score(temp / "scores/b.npy", 61);
  CHECK(contains(error("analyze", temp / "scores"),
                 "--score mine, dump b: " + (temp / "scores/b.npy").string() +
                     ": expected shape [2, 2, 47], found shape [2, 2, 61]"));
  write_score(temp / "scores/b.npy", 47);
  fs::remove(temp / "scores/a-2.npy");
  CHECK(contains(
      error("tokens", temp / "scores/{dump}.npy"),
      "--score mine, dump a-2: " + (temp / "scores/a-2.npy").string() + ": expected a readable file"));
}
