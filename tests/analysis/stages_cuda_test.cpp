#include "analysis/budgets/budget_stage.hpp"
#include "analysis/channels/channel_stage.hpp"
#include "analysis/eviction/evict_stage.hpp"
#include "analysis/run/run.hpp"
#include "analysis/tokens/token_stage.hpp"
#include "analysis/verify/verify.hpp"
#include "data/dump.hpp"
#include "data/synth.hpp"
#include "sim/backend.hpp"
#include "sim/backend/backend_cuda.hpp"
#include "sim/cache/cache_outputs.hpp"
#include "sim/channels/output_interaction.hpp"
#include "sim/cuda/runtime.hpp"
#include "sim/eviction/exact/greedy.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/no_device_memory.hpp"
#include "tests/support/read_file.hpp"
#include "tests/support/temp_dir.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

// Whole analyses on the processor that plays a device, against the CPU's.

using namespace kvreplay;
using namespace kvreplay::test;
namespace fs = std::filesystem;

namespace {

const Dump& small_dump() {
  static const TempDir temp;
  static const Dump dump = [] {
    write_synthetic_dump(temp / "dump",
                         {.layers = 1, .head_dim = 8, .prompt = 61, .decode = 9, .dtype = Dtype::f16});
    return Dump::open(temp / "dump", {});
  }();
  return dump;
}

using Make = std::unique_ptr<Stage> (*)(const Compute&);

std::unique_ptr<Stage> tokens(const Compute& compute) {
  return std::make_unique<TokenStage>(small_dump(), TokenStageOptions{}, compute);
}
std::unique_ptr<Stage> evict(const Compute& compute) {
  EvictionOptions options;
  options.policies = policies_named({"h2o", "snapkv+joint", "tova+caote", "keydiff", "oracle", "exchange"});
  options.budgets = {{12}, {40}};
  options.phases = {{}, {Phase::Kind::blockwise, 30}, {Phase::Kind::decode}};
  return std::make_unique<EvictStage>(small_dump(), options, compute);
}
std::unique_ptr<Stage> levers(const Compute& compute) {
  EvictionOptions options;
  options.policies = policies_named({"snapkv", "keydiff"});
  options.channels = RuleAndRatio{*channel_rule_named("iap"), 0.5};
  options.stored.formats = {OptionValue<CacheFormat>::parse({}, "4")};
  return std::make_unique<EvictStage>(small_dump(), options, compute);
}
std::unique_ptr<Stage> budget(const Compute& compute) {
  return std::make_unique<BudgetStage>(small_dump(), BudgetOptions{}, std::vector<Index>{0}, compute);
}
std::unique_ptr<Stage> channels(const Compute& compute) {
  ChannelOptions options;
  options.methods = channel_rules_named({"think", "iap", "output"});
  options.ratios = {0.5};
  return std::make_unique<ChannelStage>(small_dump(), options, compute);
}

/// The files of a run, by their paths.
std::map<std::string, std::string> results(Make make, const std::shared_ptr<const Backend>& backend,
                                           int threads) {
  const TempDir temp;
  std::vector<std::unique_ptr<Stage>> stages;
  Workers workers(threads);
  stages.push_back(make({workers, *backend}));
  RunOptions options;
  options.layers = {0};
  ResultFolder folder(temp / "r", run_settings(small_dump(), stages, options),
                      layer_fingerprints(small_dump(), layers_of_run(options), workers), Existing::refuse);
  Ranks alone;
  folder.finish(run_stages(small_dump(), stages, options, folder, workers, alone).summary);
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(temp / "r"))
    if (entry.is_regular_file())
      files[fs::relative(entry.path(), temp / "r").string()] = read_file(entry.path());
  return files;
}

std::vector<std::string> split(const std::string& text, char mark) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, mark);) parts.push_back(part);
  return parts;
}

/// Cells are figures in a head's own scale, where float32 knows changes of an output to some 1e-9, or text. A
/// rank correlation moves where two tokens that float32 cannot tell apart change places.
bool same_cell(const std::string& a, const std::string& b, bool of_ranks) {
  if (a == b) return true;
  char *end_a = nullptr, *end_b = nullptr;
  const double x = std::strtod(a.c_str(), &end_a), y = std::strtod(b.c_str(), &end_b);
  if (*end_a != 0 || *end_b != 0 || a.empty() || b.empty()) return false;
  return std::abs(x - y) <= (of_ranks ? 5e-3 : 1e-3 * std::abs(x) + 1e-8);
}

/// The first line in which two tables differ, or nothing.
std::string difference(const std::string& want, const std::string& got) {
  const std::vector<std::string> a = split(want, '\n'), b = split(got, '\n');
  if (a.size() != b.size()) return "other rows";
  for (std::size_t row = 0; row < a.size(); ++row) {
    const std::vector<std::string> cells = split(a[row], ','), others = split(b[row], ',');
    if (cells.size() != others.size()) return a[row] + " | " + b[row];
    const bool of_ranks = std::find(cells.begin(), cells.end(), "spearman") != cells.end();
    for (std::size_t c = 0; c < cells.size(); ++c)
      if (!same_cell(cells[c], others[c], of_ranks)) return a[row] + " | " + b[row];
  }
  return "";
}

const std::map<std::string, Make>& analyses() {
  static const std::map<std::string, Make> all = {
      {"tokens", tokens}, {"evict", evict}, {"levers", levers}, {"budget", budget}, {"channels", channels}};
  return all;
}

/// The CPU, that notes what it is asked for; for one thread.
class Recorder final : public Backend {
 public:
  using Backend::output_interaction;
  using Backend::token_metrics, Backend::output_changes;
  mutable std::set<std::string> asked;

  TokenMetrics token_metrics(const HeadGroup<float>& group, const TokenOptions& options, Workers& workers,
                             const StoredGroup* stored) const override {
    asked.insert("token_metrics");
    return Backend::token_metrics(group, options, workers, stored);
  }
  OutputChanges<float> output_changes(const HeadGroup<float>& group, RowRange rows,
                                      std::span<const Cache<float>> caches, bool with_vectors,
                                      Workers& workers) const override {
    asked.insert("output_changes");
    return Backend::output_changes(group, rows, caches, with_vectors, workers);
  }
  Matrix<double> output_interaction(const HeadGroup<float>& group, RowRange rows, const PrunableKeys& keys,
                                    Workers& workers) const override {
    asked.insert("output_interaction");
    return Backend::output_interaction(group, rows, keys, workers);
  }
  GreedyPath greedy_exact(const HeadGroup<double>& group, RowRange rows, Index keep,
                          Workers& workers) const override {
    asked.insert("greedy_exact");
    return Backend::greedy_exact(group, rows, keep, workers);
  }
  KeptSet exchange(const HeadGroup<double>& group, RowRange rows, KeptSet start,
                   Workers& workers) const override {
    asked.insert("exchange");
    return Backend::exchange(group, rows, std::move(start), workers);
  }
};

}  // namespace

TEST_CASE("every analysis comes to the CPU's results on a device", "[cuda][backend]") {
  for (const auto& [name, make] : analyses()) {
    const auto want = results(make, std::make_shared<const Backend>(), 1);
    const auto got = results(make, cuda_backend(false), 1);
    REQUIRE(want.size() == got.size());
    std::size_t tables = 0;
    for (const auto& [file, text] : want) {
      INFO(name << ": " << file);
      REQUIRE(got.contains(file));
      if (file.find("/kept/") != std::string::npos) CHECK((got.at(file) == text));
      if (!file.ends_with(".csv") || file == "files.csv") continue;
      ++tables;
      CHECK(difference(text, got.at(file)) == "");
    }
    CHECK(tables > 0);
    // Sums in another order: it was not the CPU.
    CHECK((want != got));
  }
}

TEST_CASE("the device's results do not depend on the number of threads", "[cuda][backend]") {
  for (const auto& [name, make] : analyses()) {
    INFO(name);
    CHECK((results(make, cuda_backend(false), 1) == results(make, cuda_backend(false), 3)));
  }
}

TEST_CASE("every analysis asks its backend for what it can compute", "[backend]") {
  const std::map<std::string, std::set<std::string>> expected = {
      {"tokens", {"token_metrics"}},
      {"evict", {"token_metrics", "output_changes", "greedy_exact", "exchange"}},
      {"levers", {"token_metrics"}},
      {"budget", {"token_metrics", "output_changes"}},
      {"channels", {"output_interaction"}}};
  for (const auto& [name, make] : analyses()) {
    INFO(name);
    const auto recorder = std::make_shared<const Recorder>();
    results(make, recorder, 1);
    CHECK(recorder->asked == expected.at(name));
  }
}

TEST_CASE("token metrics on a device take a dump's numbers as they are stored", "[backend]") {
  class Device final : public Backend {
   public:
    using Backend::token_metrics;
    bool reads_stored() const override { return true; }
    TokenMetrics token_metrics(const HeadGroup<float>& group, const TokenOptions& options, Workers& workers,
                               const StoredGroup* stored) const override {
      found = stored == nullptr ? std::nullopt : std::optional(stored->dtype);
      return Backend::token_metrics(group, options, workers, stored);
    }
    mutable std::optional<Dtype> found;
  };
  Workers workers(1);
  for (const Dtype dtype : {Dtype::f16, Dtype::bf16, Dtype::f32, Dtype::f64}) {
    const TempDir temp;
    write_synthetic_dump(temp / "dump",
                         {.layers = 1, .head_dim = 8, .prompt = 21, .decode = 3, .dtype = dtype});
    const Dump dump = Dump::open(temp / "dump", {});
    const auto device = std::make_shared<Device>();
    TokenStage stage(dump, TokenStageOptions{}, {workers, *device});
    stage.begin_layer(0);
    std::vector<double> figures(stage.figures_per_head());
    stage.head(load_head_group<float>(dump, 0, 1), figures);
    CHECK(device->found == (size_of(dtype) == 2 ? std::optional(dtype) : std::nullopt));
  }
}

TEST_CASE("without device memory an analysis fails, or the CPU takes over", "[cuda][backend][hog]") {
  const NoDeviceMemory none;
  for (const auto& [name, make] : analyses()) {
    INFO(name);
    const auto lenient = cuda_backend(true);
    CHECK((results(make, lenient, 2) == results(make, std::make_shared<const Backend>(), 1)));
    CHECK(lenient->fell_back() > 0);
    CHECK_THROWS_AS(results(make, cuda_backend(false), 2), cuda::OutOfDeviceMemory);
  }
}

TEST_CASE("verify judges the device and says so", "[cuda][backend][verify]") {
  VerifyOptions options;
  options.tokens = 4;
  options.window = 8;
  options.layers = {0};
  Workers workers(1);
  const auto device = cuda_backend(false);
  const VerifyResult result = verify(small_dump(), options, {workers, *device});
  CHECK(result.ok());
  const auto check_named = [&](const std::string& name) {
    for (const Check& check : result.checks)
      if (check.name == name) return check;
    FAIL("no check of " << name);
    return Check{};
  };
  CHECK(check_named("CUDA backend").ok());
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  CHECK(has(check_named("kept sets").worst, ", float32 on cuda "));
  const Check channel_check = check_named("channels, caches");
  CHECK(has(channel_check.worst, ", float32 on cuda "));
  CHECK(channel_check.figures["backend"] == "cuda");
  CHECK(channel_check.figures["worst_f32_on_device"] < 1e-4);
}

TEST_CASE("verify without device memory fails", "[cuda][backend][verify][hog]") {
  VerifyOptions options;
  options.layers = {0};
  Workers workers(1);
  const auto device = cuda_backend(false);
  const NoDeviceMemory none;
  CHECK_THROWS_AS(verify(small_dump(), options, {workers, *device}), cuda::OutOfDeviceMemory);
}
