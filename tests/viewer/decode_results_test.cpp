#include "data/error.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/data/expect_error.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer/decode_runs.hpp"
#include "tests/viewer/on_queue.hpp"
#include "viewer/questions/decoding.hpp"

#include <algorithm>
#include <filesystem>

using namespace kvreplay;
using namespace kvreplay::viewer;
using namespace kvreplay::test;

namespace {

void run_evict(const TempDir& dir, const std::string& sigmas, const std::string& phases) {
  succeed({"evict", sample_dump(), "--out", (dir / "r").string(), "--layers", "1,3", "--sigma", sigmas,
           "--policy", "snapkv,h2o", "--phase", phases, "--quiet"});
}

}  // namespace

TEST_CASE("decode results: the errors of a run's own replay, head by head", "[decode]") {
  const TempDir dir;
  run_evict(dir, "0.8", "decode,append-only");
  const ResultReader results(dir / "r");
  CHECK_FALSE(why_no_decode_results(results, 3).has_value());
  DecodeSettings settings;
  settings.policies = {"snapkv", "h2o"};
  settings.append_only = true;
  const Dump dump = Dump::open(sample_dump());
  for (const Index layer : {1, 3})
    for (Index head = 0; head < 2; ++head) {
      const DecodeView expected = computed(dump, settings, layer, head);
      const DecodeView found = read_decode(results, layer, head);
      REQUIRE(found.runs.size() == 4);
      for (const DecodeRun& run : found.runs) {
        const auto other =
            std::find_if(expected.runs.begin(), expected.runs.end(), [&](const DecodeRun& one) {
              return one.policy == run.policy && one.append_only == run.append_only;
            });
        INFO(run.policy << " " << run.append_only);
        REQUIRE(other != expected.runs.end());
        CHECK(run.error == other->error);
        CHECK(run.mean == Approx(other->mean).epsilon(1e-13));
        CHECK(run.max == other->max);
        CHECK(run.last == other->last);
        CHECK(run.first_step == other->first_step);
        CHECK(run.T == 0);
        CHECK(run.start.empty());
      }
    }
}

TEST_CASE("decode results: budgets of one policy are told apart, and what is missing is said", "[decode]") {
  const TempDir dir;
  run_evict(dir, "0.5,0.9", "decode");
  std::filesystem::remove(dir / "r/files.csv");  // without it, what is not there was not computed
  const ResultReader results(dir / "r");
  std::vector<std::string> names;
  for (const DecodeRun& run : read_decode(results, 1, 0).runs) names.push_back(run.policy);
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{"h2o 0.5", "h2o 0.9", "snapkv 0.5", "snapkv 0.9"});
  CHECK(why_no_decode_results(results, 0).value_or("") == "the run did not compute layer 0");
  CHECK_THROWS_AS(read_decode(results, 0, 0), InputError);
  CHECK_THROWS_AS(read_decode(results, 1, 2), InputError);
  std::filesystem::copy_file(dir / "r/layer_01/kept/h2o-paper-decode-448.npy",
                             dir / "r/decode/h2o-paper-0.5.npy",
                             std::filesystem::copy_options::overwrite_existing);
  expect_error([&] { read_decode(results, 1, 0); }, {"h2o-paper-0.5.npy", "[2, 2, 128]"});
  std::filesystem::remove(dir / "r/decode.csv");
  CHECK(why_no_decode_results(results, 1).value_or("") == "the run did not simulate decoding");
}

TEST_CASE("cache fates: what cache_after says at every step", "[decode]") {
  DecodeSettings settings;
  settings.policies = {"h2o", "tova", "streaming"};
  settings.append_only = true;
  settings.sigma = 0.9;
  const DecodeView view = computed(Dump::open(sample_dump()), settings, 2, 1);
  REQUIRE(view.runs.size() == 6);
  for (const DecodeRun& run : view.runs) {
    INFO(run.policy << " " << run.append_only);
    const CacheFates fates = cache_fates(run);
    REQUIRE(std::ssize(fates.left_at) == run.T);
    const std::vector<Index> sizes = cache_sizes(run);
    bool same = true, leaving = true, counted = true;
    for (Index step = 0; step < run.steps(); ++step) {
      const std::vector<std::uint8_t> cache = cache_after(run, step);
      Index held = 0;
      for (Index p = 0; p < run.T; ++p) {
        const Held found = held_at(fates, p, step);
        held += found == Held::kept ? 1 : 0;
        same = same && (found == Held::kept) == (cache[p] == 1);
        same = same && (found == Held::not_there_yet) == (p > run.first_step + step);
        const bool moves = std::find(run.left.begin(), run.left.end(), DecodeMove{step, p}) != run.left.end();
        leaving = leaving && (found == Held::leaves_now) == moves;
      }
      counted = counted && held == sizes[step];
    }
    CHECK(same);
    CHECK(leaving);
    CHECK(counted);
  }
}

TEST_CASE("cache fates: cuts before the first step, tokens turned away, an empty prompt", "[decode]") {
  DecodeRun run;
  run.l = 3;
  run.T = 7;
  run.first_step = 5;
  run.start = {1, 0, 1};
  run.left = {{-2, 2}, {-1, 3}, {0, 5}};
  run.error = {0, 0};
  const CacheFates fates = cache_fates(run);
  CHECK(fates.left_at == std::vector<Index>{CacheFates::kStays, CacheFates::kWithPrompt, -2, -1,
                                            CacheFates::kStays, 0, CacheFates::kStays});
  CHECK(held_at(fates, 1, 0) == Held::gone);
  CHECK(held_at(fates, 3, 0) == Held::gone);
  CHECK(held_at(fates, 5, 0) == Held::leaves_now);
  CHECK(held_at(fates, 5, 1) == Held::gone);
  CHECK(held_at(fates, 6, 0) == Held::not_there_yet);
  CHECK(held_at(fates, 6, 1) == Held::kept);
  CHECK(cache_fates(DecodeRun{}).left_at.empty());
}
