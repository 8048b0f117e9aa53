// Two layers that read one cache are one layer of twice the query heads: whatever is chosen for the cache is
// what is chosen there, and what it costs the two adds up to what it costs there.

#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <random>

using namespace kvreplay::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr std::size_t T = 70, l = 61, n_kv = 2, G = 2, d = 8, d_v = 6, d_model = 5;

/// `shared`: layers 0 and 1 read one cache; `whole`: the one layer that they are together.
class SharedCache {
 public:
  explicit SharedCache(bool with_wo = true) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    const auto numbers = [&](std::size_t count, float size) {
      std::vector<float> all(count);
      for (float& x : all) x = size * normal(random);
      return all;
    };
    const std::vector<float> k = numbers(n_kv * T * d, 1.5F), v = numbers(n_kv * T * d_v, 1);
    const Json prompt = {{"prompt_len", l}, {"rope", {{"style", "half"}, {"theta", 100.0}}}};
    for (const char* name : {"shared", "whole"})
      for (const int layer : {0, 1})
        if (layer == 0 || std::string_view(name) == "shared") {
          write(name, layer, "k", {n_kv, T, d}, k);
          write(name, layer, "v", {n_kv, T, d_v}, v);
        }
    for (const auto& [tensor, width] :
         {std::pair{"q", T * d}, std::pair{"q_ref", 40 * d}, std::pair{"wo", d_v * d_model}}) {
      if (!with_wo && std::string_view(tensor) == "wo") continue;
      const std::size_t rows = std::string_view(tensor) == "q" ? T : width == 40 * d ? 40 : d_v;
      std::vector<float> of_layer[2], all;
      for (std::vector<float>& layer : of_layer) layer = numbers(n_kv * G * width, 1);
      for (std::size_t g = 0; g < n_kv; ++g)
        for (const std::vector<float>& layer : of_layer)
          all.insert(all.end(), layer.begin() + static_cast<std::ptrdiff_t>(g * G * width),
                     layer.begin() + static_cast<std::ptrdiff_t>((g + 1) * G * width));
      for (const int layer : {0, 1})
        write("shared", layer, tensor, {n_kv * G, rows, width / rows}, of_layer[layer]);
      write("whole", 0, tensor, {2 * n_kv * G, rows, width / rows}, all);
    }
    Json manifest = prompt;
    write_file(temp_ / "whole/manifest.json", manifest.dump());
    manifest["cache_of"] = {0, 0};
    write_file(temp_ / "shared/manifest.json", manifest.dump());
  }

  std::string operator/(const std::string& name) const { return temp_ / name; }
  void run(const std::string& command, const std::vector<std::string>& options) const {
    for (const char* name : {"shared", "whole"}) {
      std::vector<std::string> words = {
          command,       temp_ / name, "--out",     temp_ / (command + "-" + name),
          "--precision", "f64",        "--threads", "2"};
      words.insert(words.end(), options.begin(), options.end());
      succeed(words);
    }
  }
  /// Every file of a kind that the one layer has is that of both layers, byte for byte.
  std::size_t same_files(const std::string& command, const std::string& kind) const {
    const fs::path whole = temp_ / (command + "-whole/layer_00/" + kind);
    std::size_t files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(whole)) {
      if (!entry.is_regular_file()) continue;
      if (entry.path().filename().string().starts_with("query_")) continue;  // the layer's own
      for (const char* layer : {"layer_00/", "layer_01/"}) {
        const fs::path other =
            temp_ / (command + "-shared/" + layer + kind) / entry.path().lexically_relative(whole);
        INFO(other.string());
        CHECK(file_text(other) == file_text(entry.path()));
      }
      ++files;
    }
    return files;
  }

 private:
  void write(const std::string& name, int layer, const std::string& tensor,
             const std::vector<std::size_t>& shape, const std::vector<float>& values) const {
    const fs::path folder = temp_ / fmt::format("{}/layer_0{}", name, layer);
    fs::create_directories(folder);
    write_file(folder / (tensor + ".npy"), npy<float>("<f4", shape, values).bytes());
  }

  TempDir temp_;
};

}  // namespace

TEST_CASE("layers that read one cache keep one set of its tokens, chosen by them all", "[cli][evict]") {
  const SharedCache dumps;
  dumps.run("evict",
            {"--policy",
             "h2o,tova,snapkv,snapkv+joint,snapkv+caote,knorm,expected_attention,leverage,oracle,"
             "oracle_exact,greedy_exact,exchange,kvzip",
             "--sigma", "0.5,0.8", "--phase", "prefill,blockwise:16,decode,append-only", "--window", "16"});
  CHECK(dumps.same_files("evict", "kept") > 60);
  CHECK(dumps.same_files("evict", "last_rows") > 10);
  const Evictions shared(dumps / "evict-shared"), whole(dumps / "evict-whole");
  std::size_t compared = 0;
  for (const CsvRow& row : whole.rows()) {
    if (!row.at("layer").empty()) continue;
    const std::string run =
        fmt::format("{},{},{},{}", row.at("policy"), row.at("semantics"), row.at("phase"), row.at("budget"));
    const std::string metric = row.at("metric");
    INFO(run << " " << row.at("rows") << " " << metric);
    const auto at = [&](const Evictions& from) { return from.at(",", run, row.at("rows"), metric); };
    if (metric == "layer_output_error") continue;  // heads add up within a layer
    if (metric == "eviction_loss" || metric == "optimality_gap")
      CHECK(at(shared) == Approx(at(whole)).epsilon(1e-9).margin(1e-9));
    else
      CHECK(at(shared) == Approx(at(whole)).epsilon(1e-9));
    ++compared;
  }
  CHECK(compared > 200);
}

TEST_CASE("pruned channels, bits and what makes up for evictions are those of the cache", "[cli][evict]") {
  const SharedCache dumps;
  dumps.run("evict", {"--policy", "h2o,snapkv", "--budget", "20", "--channels", "iap:0.5", "--bits", "4",
                      "--group", "4", "--residual", "4"});
  CHECK(dumps.same_files("evict", "pruned") == 2);
  for (const char* name : {"evict-shared", "evict-whole"}) fs::remove_all(dumps / name);
  dumps.run("evict", {"--policy", "h2o", "--budget", "20", "--compensate", "mass,values,fit,mean,keepkv",
                      "--reference", "repeat"});
  CHECK(dumps.same_files("evict", "compensated") >= 6);
  const auto bytes = [&](const char* name) {
    double all = 0;
    for (const auto& row :
         csv_rows(dumps / (std::string("evict-") + name + "/compensation.csv"),
                  "layer,kv_head,policy,semantics,phase,budget,kept,method,reference,rows,metric,value"))
      if (row.at("layer").empty() && row.at("metric") == "bytes") all += std::stod(row.at("value"));
    return all;
  };
  CHECK(bytes("whole") > 0);
  CHECK(bytes("shared") == bytes("whole"));
  dumps.run("channels", {"--method", "think,iap,exchange,output", "--ratio", "0.5"});
  CHECK(dumps.same_files("channels", "channels") >= 3);
}

TEST_CASE("a budget is shared between caches, not between the layers that read them", "[cli][budget]") {
  const SharedCache dumps;
  dumps.run("budget",
            {"--method", "uniform,pyramid,ada,lu,optimal", "--sigma", "0.6,0.9", "--order", "attn,snapkv"});
  CHECK(dumps.same_files("budget", "kept") == 20);
  for (const auto& entry : fs::directory_iterator(dumps / "budget-whole/head_budgets"))
    CHECK(file_text(entry.path()) ==
          file_text(dumps / ("budget-shared/head_budgets/" + entry.path().filename().string())));
  const Npy profile = npy_file(dumps / "budget-shared/budget_curves.npy"),
            whole = npy_file(dumps / "budget-whole/budget_curves.npy");
  CHECK(profile.shape == std::vector<std::size_t>{99, 2, n_kv});
  const std::vector<float> both = profile.as<float>(), one = whole.as<float>();
  for (std::size_t i = 0; i < both.size(); ++i) CHECK(both[i] == one[i / (2 * n_kv) * n_kv + i % n_kv]);
  // A profile of both layers gives the budgets back.
  const auto shares = [&](const std::string& folder, const char* name) {
    return file_text(dumps / (folder + "/head_budgets/" + name));
  };
  succeed({"budget", dumps / "shared", "--out", dumps / "again", "--precision", "f64", "--method", "uniform",
           "--sigma", "0.6", "--order", "attn", "--profile", dumps / "budget-shared/curves/attn~lu.npy"});
  CHECK(shares("again", "attn-profile-0.6.json") == shares("budget-shared", "attn-lu-0.6.json"));
}

TEST_CASE("one kept set is given for a cache, and scores of its readers add up", "[cli][evict]") {
  const SharedCache dumps;
  std::vector<double> scores(2 * n_kv * l), sum(n_kv * l);
  std::mt19937 random(8);
  for (double& x : scores) x = static_cast<double>(random() % 1000);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = scores[i] + scores[i + sum.size()];
  write_file(dumps / "shared.npy", npy<double>("<f8", {2, n_kv, l}, scores).bytes());
  write_file(dumps / "whole.npy", npy<double>("<f8", {1, n_kv, l}, sum).bytes());
  dumps.run("evict",
            {"--policy", "score:mine", "--score", "mine=" + (dumps / "{dump}.npy"), "--budget", "20"});
  CHECK(dumps.same_files("evict", "kept") == 1);

  std::vector<std::uint8_t> kept(2 * n_kv * l, 1);
  kept[0] = kept[n_kv * l] = 0;
  write_file(dumps / "kept.npy", npy<std::uint8_t>("|b1", {2, n_kv, l}, kept).bytes());
  const std::vector<std::string> given = {"evict", dumps / "shared", "--policy",
                                          "none",  "--kept",         "mine=" + (dumps / "kept.npy"),
                                          "--out", dumps / "given",  "--force"};
  succeed(given);
  kept[n_kv * l + 7] = 0;
  write_file(dumps / "kept.npy", npy<std::uint8_t>("|b1", {2, n_kv, l}, kept).bytes());
  const ProcessResult refused = run_kvreplay(given);
  CHECK(refused.code == 2);
  CHECK(contains(refused.err,
                 "--kept mine: expected one kept set for layers 0 and 1, which read one cache, found "
                 "others in KV head 0"));
}

TEST_CASE("layers of different windows do not read one cache", "[cli][evict]") {
  const SharedCache dumps;
  Json manifest = Json::parse(file_text(dumps / "shared/manifest.json"));
  manifest["sliding_window"] = {16, nullptr};
  write_file(dumps / "shared/manifest.json", manifest.dump());
  const ProcessResult refused = run_kvreplay({"info", dumps / "shared"});
  CHECK(refused.code == 2);
  CHECK(contains(refused.err,
                 "cache_of: expected layers of one sliding window that share a cache, found layer 1, "
                 "whose window is not that of layer 0"));
}
