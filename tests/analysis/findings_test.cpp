#include "analysis/findings/findings.hpp"

#include "data/atomic_file.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/data/expect_error.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/process.hpp"
#include "tests/support/temp_dir.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

// Findings of a result folder, from made-up tables whose outcome is known.

namespace kvreplay {
namespace {

using test::contains;
using test::expect_error;
using test::TempDir;
namespace fs = std::filesystem;

/// Two layers, 0 and 3, of two heads; 20 candidates.
const std::string kSummary = R"({"program": "kvreplay", "schema": 1,
  "dump": {"model": "m", "fingerprint": "f", "layers": 4, "n_q": 2, "n_kv": 2, "d": 8, "d_v": 8, "d_model": 0,
           "T": 24, "T_q": 24, "l": 20},
  "layers": [0, 3]})";
constexpr const char* kEvictions =
    "layer,kv_head,policy,semantics,phase,budget,kept,kept_share,rows,metric,value";

/// A figure of agreement.csv for the four heads.
std::string agreement(const std::string& key, const std::vector<double>& heads) {
  std::string rows;
  for (std::size_t h = 0; h < heads.size(); ++h)
    rows += fmt::format("{},{},{},{}\n", h < 2 ? 0 : 3, h % 2, key, heads[h]);
  return rows;
}

/// A figure of evictions.csv, for both layers and the model.
std::string eviction(const std::string& policy, const std::string& budget, const std::string& metric,
                     double a, double b, double model) {
  const std::string key = fmt::format("{},paper,prefill,{},,,future,{}", policy, budget, metric);
  return fmt::format("0,,{0},{1}\n3,,{0},{2}\n,,{0},{3}\n", key, a, b, model);
}

void write_agreement(const TempDir& dir) {
  write_file(dir / "agreement.csv",
             "layer,kv_head,score,reference,rows,window,reserve,metric,value\n" +
                 agreement("attn,exact_remove,window,32,0,spearman", {0.96, 0.98, 0.5, 0.96}) +
                 agreement("value,exact_remove,window,32,0,spearman", {0.99, 0.98, 0.98, 0.98}) +
                 agreement("attn,oracle_future,future,32,0,recall@10%", {0.5, 0.25, 0.5, 0.5}) +
                 agreement("exact_remove,oracle_future,future,32,0,recall@10%", {0.5, 0.5, 1, 0.75}));
}

void write_tokens(const TempDir& dir, const std::vector<double>& attn) {
  std::vector<double> real(40);
  // Costs in head 0 of layer 3: token 7 costs most, then token 2, then the others in their order.
  for (std::size_t i = 0; i < 20; ++i) real[i] = static_cast<double>(20 - i) / 100;
  real[7] = 9, real[2] = 5;
  for (std::size_t i = 0; i < 20; ++i) real[20 + i] = static_cast<double>(i);
  fs::create_directories(dir.path() / "layer_03" / "tokens");
  test::write_file(dir / "layer_03/tokens/attn.npy", test::npy<double>("<f8", {2, 20}, attn).bytes());
  test::write_file(dir / "layer_03/tokens/exact_remove.npy", test::npy<double>("<f8", {2, 20}, real).bytes());
}

/// attn of head 0: token 7 first, token 2 last but one.
std::vector<double> attn_of_tokens() {
  std::vector<double> attn(40);
  for (std::size_t i = 0; i < 20; ++i) attn[i] = 1 + static_cast<double>(i) / 100;
  attn[7] = 3, attn[2] = 0.5, attn[4] = 0.25;
  return attn;
}

void write_evictions(const TempDir& dir, const std::string& more = "") {
  write_file(dir / "evictions.csv", std::string(kEvictions) + "\n" +
                                        eviction("h2o", "0.8", "output_error", 0.2, 0.02, 0.08) +
                                        eviction("snapkv", "0.8", "output_error", 0.1, 0.02, 0.04) +
                                        eviction("tova", "0.8", "output_error", 0.1, 0.02, 0.05) +
                                        eviction("oracle_exact", "0.8", "output_error", 0.01, 0.01, 0.01) +
                                        eviction("h2o", "0.5", "output_error", 0.2, 0.02, 0.001) +
                                        eviction("snapkv", "0.5", "output_error", 0.1, 0.02, 0.04) + more);
}

std::vector<std::string> texts(const fs::path& folder) {
  std::vector<std::string> all;
  for (const Finding& one : findings_of(ResultReader(folder))) all.push_back(one.text);
  return all;
}

constexpr const char* kPolicy =
    "0.04 is the lowest output error of 3 policies, that of snapkv (kept 20 %, decoding steps), 4 times that "
    "of oracle_exact, which knows the future; 1 of the others within 1.5 times, no clear difference; h2o has "
    "2 times as much.";

}  // namespace

TEST_CASE("findings say what made-up tables hold, the most surprising first", "[findings]") {
  const TempDir dir;
  write_file(dir / "summary.json", kSummary);
  CHECK(texts(dir.path()).empty());

  write_evictions(dir);
  CHECK(texts(dir.path()) ==
        std::vector<std::string>{
            kPolicy,
            "0.1 is the output error of layer 0, 1.7 times the median layer's 0.06 (snapkv, kept 20 %)."});

  write_agreement(dir);
  std::vector<Finding> found = findings_of(ResultReader(dir.path()));
  REQUIRE(found.size() == 4);
  CHECK(found[0].text ==
        "50 % of the tenth of tokens that decoding misses most is what the best score finds (attn; the exact "
        "cost on the window 62 %), although value follows the exact cost on the window with rank correlation "
        "0.98 (median head).");
  CHECK(found[1].text ==
        "0.50 is the lowest rank correlation of attn with the exact cost (exact_remove): layer 3 head 0; the "
        "median head has 0.96.");
  CHECK(found[1].weight == Approx(0.5 / 0.04));
  CHECK(found[1].place.layer == 3);
  CHECK(found[1].place.kv_head == 0);
  CHECK_FALSE(found[1].place.token);

  write_tokens(dir, attn_of_tokens());
  found = findings_of(ResultReader(dir.path()));
  CHECK(found[1].place.token == 2);
  CHECK(contains(found[1].text, "the median head has 0.96; token 2 is 2nd by cost and 19th by attn."));
  const auto json = json_of(found);
  CHECK(json[1]["kind"] == "head");
  CHECK(nlohmann::json::parse(json[1]["place"].dump()) == nlohmann::json({{"table", "agreement"},
                                                                          {"layer", 3},
                                                                          {"kv_head", 0},
                                                                          {"token", 2},
                                                                          {"score", "attn"},
                                                                          {"reference", "exact_remove"},
                                                                          {"metric", "spearman"}}));
  CHECK(text_of(found).starts_with("Worth knowing:\n- 50 % of the tenth"));
  CHECK(text_of({}).empty());
}

TEST_CASE("with gradients the heaviest layer is told in nats", "[findings]") {
  const TempDir dir;
  write_file(dir / "summary.json", kSummary);
  write_evictions(dir, eviction("snapkv", "0.8", "loss_layer", 0.01, 0.09, 0.1) +
                           eviction("h2o", "0.8", "loss_layer", 0.3, 0.1, 0.4) +
                           ",,snapkv,paper,prefill,0.8,,,future,loss_step,0.07\n"
                           "0,0,snapkv,paper,prefill,0.8,,,future,output_error,0.3\n"
                           "0,1,snapkv,paper,prefill,0.8,,,future,output_error,0.02\n"
                           "3,0,snapkv,paper,prefill,0.8,,,future,output_error,0.01\n");
  const std::vector<Finding> found = findings_of(ResultReader(dir.path()));
  REQUIRE(found.size() == 2);
  CHECK(found[0].text.starts_with(
      "0.04 is the lowest output error of 3 policies, that of snapkv (kept 20 %, decoding steps; median head "
      "0.02; predicted 0.07 nats a step), 4 times that of oracle_exact"));
  CHECK(found[1].text ==
        "90 % of the nats that snapkv is predicted to cost, layer by layer (kept 20 %), come from layer 3, "
        "of 2 "
        "layers.");
  CHECK(found[1].weight == Approx(1.8));
  CHECK(found[1].place.layer == 3);
}

TEST_CASE("what 4-bit keys cost is told with the cures that were measured", "[findings]") {
  const TempDir dir;
  write_file(dir / "summary.json", kSummary);
  const auto keys = [&](const char* metric, double plain, double rotated, double centered, double both) {
    std::string rows;
    for (const auto& [cure, value] : {std::pair("", plain), std::pair("+hadamard", rotated),
                                      std::pair("+center:4", centered), std::pair("+hadamard+center", both)})
      rows += eviction(std::string("none~kq4_0v16") + cure, "", metric, value, value, value);
    return rows;
  };
  const auto write = [&](const std::string& rows) {
    write_file(dir / "evictions.csv", std::string(kEvictions) + "\n" + rows);
  };
  constexpr const char* kEngine =
      " An engine that writes quantized keys loses more than these stored ones, and another cure may win "
      "there: kvvalidate.py --written measures it (sim/cache/CURES.md).";
  write(keys("output_error", 0.5, 0.5, 0.5, 0.5) + keys("loss_step", 1.3, 1.5, 0.0065, 0.01));
  const std::vector<Finding> found = findings_of(ResultReader(dir.path()));
  REQUIRE(found.size() == 1);
  CHECK(found[0].text ==
        std::string("4-bit keys (q4_0) are predicted to cost 1.3 nats a step (loss_step), rotated 1.5, "
                    "centered (mean without the first 4 tokens) 0.0065, centered and rotated 0.01; centered "
                    "(mean without the first 4 tokens) they lose 200 times less.") +
            kEngine);
  CHECK(found[0].weight == Approx(200));
  CHECK(json_of(found)[0]["kind"] == "keys");
  CHECK(json_of(found)[0]["place"]["policy"] == "none~kq4_0v16+center:4");

  write(keys("output_error", 0.05, 0.04, 0.06, 0.05));
  CHECK(texts(dir.path()) ==
        std::vector<std::string>{std::string("4-bit keys (q4_0) have an output error of 0.05, rotated 0.04, "
                                             "centered (mean without the first 4 tokens) 0.06, centered and "
                                             "rotated 0.05; no cure helps 1.5 times.") +
                                 kEngine});
  write(keys("output_error", 0.5, 0.1, 0.1, 0.1) + keys("loss_step", 0.0199, 0.001, 0.001, 0.001));
  CHECK(texts(dir.path()).empty());  // nats count where there are any, and these are few
}

TEST_CASE("what fits, shared budgets and channels are worth is told against what is usual", "[findings]") {
  const TempDir dir;
  write_file(dir / "summary.json", kSummary);
  write_file(dir / "compensation.csv",
             "layer,kv_head,policy,semantics,phase,budget,kept,method,reference,rows,metric,value\n"
             ",,h2o,paper,prefill,0.8,4,none,window,future,output_error,0.1\n"
             ",,h2o,paper,prefill,0.8,4,fit,window,future,output_error,0.02\n"
             ",,h2o,paper,prefill,0.8,4,mean,window,future,output_error,0.3\n"
             ",,h2o,paper,prefill,0.8,4,keepkv,window,window,output_error,0.0001\n");
  write_file(dir / "budgets.csv",
             "layer,kv_head,order,method,sigma,budget,loss,output_error,layer_output_error\n"
             ",,snapkv,uniform,0.5,10,1,0.02,\n,,snapkv,uniform,0.8,4,1,0.04,\n"
             ",,snapkv,ada,0.5,10,1,0.015,\n,,snapkv,ada,0.8,4,1,0.05,\n"
             ",,snapkv,lu,0.5,10,1,0.009,\n,,snapkv,lu,0.8,4,1,0.03,\n"
             ",,value,uniform,0.5,10,1,0.02,\n,,value,lu,0.5,10,1,0.0001,\n");
  write_file(dir / "channels.csv",
             "layer,kv_head,method,semantics,ratio,recent,pruned,rows,metric,value\n"
             ",,,paper,,32,,window,off_diagonal_share,0.5\n"
             ",,think,paper,0.4,32,3,future,output_error,0.001\n"
             ",,iap,paper,0.4,32,3,future,output_error,0.001\n"
             ",,think,paper,0.5,32,4,future,output_error,0.02\n"
             ",,iap,paper,0.5,32,4,future,output_error,0.01\n"
             ",,magnitude,paper,0.5,32,4,future,output_error,0.3\n"
             ",,think,paper,0.5,32,4,window,output_error,0.02\n"
             ",,think,paper,0.7,32,5,future,output_error,9\n");
  CHECK(
      texts(dir.path()) ==
      std::vector<std::string>{
          "0.2 times the output error is left by fit on what h2o keeps, the best compensation (kept 20 %, "
          "decoding steps: 0.02 instead of 0.1).",
          "3 times the output error is left by mean on what h2o keeps, the worst compensation (kept 20 %, "
          "decoding steps: 0.3 instead of 0.1).",
          "55 % of the output error of equal budgets is saved if lu (oracle) divides one budget between the "
          "heads (kept 50 %, tokens ranked by snapkv); ada, which does not know the future, saves 25 %.",
          "0.01 is the lowest output error with 0.5 of the key channels pruned, that of iap (decoding "
          "steps); think costs 2 times as much and magnitude 30 times."});
}

TEST_CASE("the few heads that rule a sum are named, and how far their keys reach", "[findings]") {
  const TempDir dir;
  // Ten layers of two heads: 59 of 100 squared logits in two heads of layer 0.
  write_file(dir / "summary.json", R"({"program": "kvreplay", "schema": 1,
  "dump": {"model": "m", "fingerprint": "f", "layers": 10, "n_q": 2, "n_kv": 2, "d": 8, "d_v": 8, "d_model": 0,
           "T": 24, "T_q": 24, "l": 20},
  "layers": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]})");
  const auto channels = [&](double first, double second) {
    std::string csv = "layer,kv_head,method,semantics,ratio,recent,pruned,rows,metric,value\n";
    const auto row = [&](const std::string& scope, const char* metric, double value) {
      csv += fmt::format("{},think,paper,0.5,32,4,window,{},{}\n", scope, metric, value);
    };
    double sum = 0;
    for (int h = 0; h < 20; ++h) {
      const double error = h == 0 ? first : h == 1 ? second : 41.0 / 18;
      sum += error;
      row(fmt::format("{},{}", h / 2, h % 2), "reconstruction_error", error);
      row(fmt::format("{},{}", h / 2, h % 2), "relative_reconstruction_error", h < 2 ? 0.0001 : 0.012);
    }
    row(",", "reconstruction_error", sum);
    row(",", "relative_reconstruction_error", 0.0003);
    write_file(dir / "channels.csv", csv);
  };
  channels(20, 39);
  const ResultReader results(dir.path());
  std::vector<Finding> found = findings_of(results);
  REQUIRE(found.size() == 1);
  CHECK(
      found[0].text ==
      "2 of 20 heads hold 59 % of the model's reconstruction error (think, 0.5 of the key channels pruned): "
      "layer 0 heads 0 and 1; relative to the logits it is 0.0003 over all heads, 0.012 in the median head.");
  CHECK(found[0].weight == Approx(0.59 * 20 / 2));
  CHECK(name_of(found[0].kind) == "sum");
  CHECK(found[0].place.layer == 0);
  CHECK(found[0].place.kv_head == 1);  // the heaviest

  const Tables tables(results);
  TokenSource tokens = token_source(results);
  tokens.keys = [](Index layer, Index head) {
    CHECK(layer == 0);
    CHECK(head == 1);
    return std::optional(KeyReach{5, 145, 2});
  };
  found = findings_of(tables, tokens);
  REQUIRE(found.size() == 1);
  CHECK(contains(found[0].text,
                 "; in layer 0 head 1 keys reach 145 in channel 5, where the median channel has 2."));
  tokens.keys = [](Index, Index) { return std::optional(KeyReach{5, 19, 2}); };  // as keys do
  CHECK_FALSE(contains(findings_of(tables, tokens).at(0).text, "keys reach"));

  channels(20, 20);  // half is not in two
  CHECK(findings_of(ResultReader(dir.path())).empty());
}

TEST_CASE("how far keys reach is their largest magnitude, and the median channel's", "[findings]") {
  const TempDir dir;
  test::make_small_dump(dir / "d");
  const Dump dump = Dump::open(dir / "d");
  const Index T = dump.shape().T, d = dump.shape().d, l = dump.shape().l;
  std::vector<double> keys(static_cast<std::size_t>(T * d));
  dump.read(Tensor::k, 1, 1, keys.data());
  std::vector<double> reach;
  for (Index c = 0; c < d; ++c) {
    reach.push_back(0);
    for (Index t = 0; t < l; ++t)
      reach.back() = std::max(reach.back(), std::abs(keys[static_cast<std::size_t>(t * d + c)]));
  }
  const KeyReach found = key_reach(dump, 1, 1);
  CHECK(found.most == Approx(reach[static_cast<std::size_t>(found.channel)]).epsilon(1e-6));
  CHECK(found.most == Approx(*std::max_element(reach.begin(), reach.end())).epsilon(1e-6));
  std::sort(reach.begin(), reach.end());
  CHECK(found.median == Approx((reach[reach.size() / 2 - 1] + reach[reach.size() / 2]) / 2).epsilon(1e-6));
}

TEST_CASE("no more findings than one can keep in mind, and none below what decides", "[findings]") {
  const TempDir dir;
  write_file(dir / "summary.json", kSummary);
  write_agreement(dir);
  write_evictions(dir);
  write_file(dir / "compensation.csv",
             "layer,kv_head,policy,semantics,phase,budget,kept,method,reference,rows,metric,value\n"
             ",,h2o,paper,prefill,0.8,4,none,window,future,output_error,0.1\n"
             ",,h2o,paper,prefill,0.8,4,fit,window,future,output_error,0.02\n"
             ",,h2o,paper,prefill,0.8,4,mean,window,future,output_error,0.3\n");
  const std::vector<Finding> found = findings_of(ResultReader(dir.path()));
  CHECK(found.size() == kMostFindings);
  CHECK(std::is_sorted(found.begin(), found.end(),
                       [](const Finding& a, const Finding& b) { return a.weight > b.weight; }));
  for (const Finding& one : found) {
    CHECK(std::all_of(one.text.begin(), one.text.end(), [](char c) { return c >= ' ' && c < 0x7f; }));
    CHECK(one.text.back() == '.');
  }
  fs::remove(dir.path() / "compensation.csv");
  fs::remove(dir.path() / "agreement.csv");
  // Alike but for the policy, which then says that it decides nothing.
  write_file(dir / "evictions.csv", std::string(kEvictions) + "\n" +
                                        eviction("h2o", "0.8", "output_error", 0.05, 0.05, 0.05) +
                                        eviction("snapkv", "0.8", "output_error", 0.04, 0.04, 0.04));
  CHECK(texts(dir.path()) ==
        std::vector<std::string>{
            "0.04 is the lowest output error of 2 policies, that of snapkv (kept 20 %, decoding steps); 1 of "
            "the others within 1.5 times, no clear difference."});
}

TEST_CASE("findings pass over figures without a value and refuse damaged files", "[findings]") {
  const TempDir dir;
  write_file(dir / "summary.json", kSummary);
  write_file(dir / "evictions.csv", std::string(kEvictions) + "\n");
  write_file(dir / "agreement.csv",
             "layer,kv_head,score,reference,rows,window,reserve,metric,value\n"
             "0,0,attn,exact_remove,window,32,0,spearman,\n0,1,attn,exact_remove,window,32,0,spearman,\n");
  CHECK(texts(dir.path()).empty());
  write_agreement(dir);
  write_tokens(dir, attn_of_tokens());
  const std::string whole = test::file_text(fs::path(dir / "layer_03/tokens/attn.npy"));
  write_file(dir / "layer_03/tokens/attn.npy", whole.substr(0, whole.size() - 8));
  expect_error([&] { findings_of(ResultReader(dir.path())); }, {"attn.npy"});
  write_file(dir / "layer_03/tokens/attn.npy", whole);
  write_file(dir / "evictions.csv",
             std::string(kEvictions) + "\n,,h2o,paper,prefill,0.8,,,future,output_error,many\n");
  expect_error([&] { findings_of(ResultReader(dir.path())); }, {"evictions.csv"});
  write_file(dir / "evictions.csv", "layer,kv_head\n");
  expect_error([&] { findings_of(ResultReader(dir.path())); }, {"a column policy"});
}

}  // namespace kvreplay
