#include "data/error.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer/decode_runs.hpp"
#include "tests/viewer/on_queue.hpp"
#include "viewer/questions/decoding.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

using namespace kvreplay;
using namespace kvreplay::viewer;
using namespace kvreplay::test;

namespace {

std::string refusal_of(const DecodeSettings& settings, const Dump& dump) {
  try {
    decode_plan(settings, dump);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("decode view: the errors of kvreplay evict at every step") {
  const auto semantics = GENERATE(Semantics::paper, Semantics::kvpress);
  DecodeSettings settings;
  settings.semantics = semantics;
  settings.policies = {"snapkv+joint", "h2o", "streaming", "knorm"};
  settings.append_only = true;
  settings.sigma_budget = false;
  settings.budget = 120;
  settings.sinks = 3;
  if (semantics == Semantics::kvpress) settings.decode_window = 5;
  const TempDir dir;
  std::vector<std::string> arguments = {"evict",
                                        sample_dump(),
                                        "--out",
                                        (dir / "r").string(),
                                        "--layers",
                                        "4",
                                        "--policy",
                                        "snapkv+joint,h2o,streaming,knorm",
                                        "--budget",
                                        "120",
                                        "--sinks",
                                        "3",
                                        "--phase",
                                        "decode,append-only",
                                        "--quiet",
                                        "--semantics",
                                        std::string(name_of(semantics))};
  if (settings.decode_window) arguments.insert(arguments.end(), {"--decode-window", "5"});
  succeed(arguments);
  const Dump dump = Dump::open(sample_dump());
  const auto rows = csv_rows(dir / "r/decode.csv", "layer,kv_head,policy,semantics,budget,metric,value");
  for (Index head = 0; head < 2; ++head) {
    const DecodeView view = computed(dump, settings, 4, head);
    REQUIRE(view.runs.size() == 8);
    for (const DecodeRun& run : view.runs) {
      const std::string name = run.policy + (run.append_only ? "~append-only" : "");
      INFO(name << ", head " << head);
      const Npy steps = npy_file(dir / fmt::format("r/decode/{}-{}-120.npy", name, name_of(semantics)));
      REQUIRE(steps.shape == std::vector<std::size_t>{1, 2, 128});
      const auto values = steps.as<double>();
      CHECK(std::equal(run.error.begin(), run.error.end(), values.begin() + head * 128,
                       values.begin() + (head + 1) * 128));
      for (const auto& [metric, value] :
           std::map<std::string, double>{{"mean", run.mean}, {"max", run.max}, {"last", run.last}}) {
        const auto at = std::find_if(rows.begin(), rows.end(), [&, metric = metric](const CsvRow& row) {
          return row.at("kv_head") == std::to_string(head) && row.at("policy") == name &&
                 row.at("metric") == metric;
        });
        REQUIRE(at != rows.end());
        CHECK(value == Approx(std::stod(at->at("value"))).epsilon(1e-13));
      }
    }
  }
}

TEST_CASE(
    "decode view: what the cache holds is what the replay says at its end, and never beyond the budget") {
  const Dump dump = Dump::open(sample_dump());
  DecodeSettings settings;
  settings.policies = {"h2o", "tova", "keydiff"};
  settings.append_only = true;
  settings.sigma = 0.9;
  const DecodeView view = computed(dump, settings, 2, 0);
  REQUIRE(view.runs.size() == 6);
  for (const DecodeRun& run : view.runs) {
    INFO(run.policy << (run.append_only ? " append-only" : ""));
    CHECK(run.budget == 90);
    CHECK(cache_after(run, -1).size() == 1024);
    const std::vector<Index> sizes = cache_sizes(run);
    REQUIRE(std::ssize(sizes) == run.steps());
    std::vector<std::uint8_t> before = cache_after(run, -1);
    CHECK(std::equal(run.start.begin(), run.start.end(), before.begin()));
    CHECK(std::accumulate(before.begin(), before.end(), Index{0}) == run.budget);
    for (Index step = 0; step < run.steps(); ++step) {
      const std::vector<std::uint8_t> cache = cache_after(run, step);
      const Index size = std::accumulate(cache.begin(), cache.end(), Index{0});
      REQUIRE(size == sizes[step]);
      if (!run.append_only) REQUIRE(size == run.budget);
      Index joined = 0;
      for (std::size_t p = 0; p < cache.size(); ++p) {
        const bool is_new = cache[p] > before[p];
        joined += is_new ? 1 : 0;
        if (is_new) REQUIRE(static_cast<Index>(p) == run.first_step + step);
        // Append-only never evicts.
        if (run.append_only) REQUIRE(cache[p] >= before[p]);
      }
      REQUIRE(joined <= 1);
      before = cache;
    }
    CHECK(std::equal(run.kept.begin(), run.kept.end(), before.begin()));
  }
}

TEST_CASE("decode view: what decoding starts from serves every budget, pooling and pin of its key") {
  const Dump dump = Dump::open(sample_dump());
  DecodeSettings first, second;
  first.policies = second.policies = {"snapkv", "h2o+caote"};
  first.append_only = second.append_only = true;
  second.sigma_budget = false;
  second.budget = 50;
  second.sinks = 2;
  second.pool = Pooling{Pooling::Kind::avg, 3};
  const DecodePlan a = decode_plan(first, dump), b = decode_plan(second, dump);
  REQUIRE(starts_key(a) == starts_key(b));
  const auto group = load_head_group<float>(dump, 1, 1);
  const DecodeView shared = on_queue([&](JobControl& job) {
    return decode_view(group, b, decode_outputs(group, job), decode_starts(group, a, job), job);
  });
  const DecodeView own = computed(dump, second, 1, 1);
  for (std::size_t r = 0; r < 4; ++r) {
    CHECK(shared.runs[r].error == own.runs[r].error);
    CHECK(shared.runs[r].left == own.runs[r].left);
  }
  const auto differs = [&](const auto& change) {
    DecodeSettings other = first;
    change(other);
    return starts_key(decode_plan(other, dump)) != starts_key(a);
  };
  CHECK(differs([](auto& s) { s.window = 5; }));
  CHECK(differs([](auto& s) { s.decode_window = 5; }));
  CHECK(differs([](auto& s) { s.append_only = false; }));
  CHECK(differs([](auto& s) { s.semantics = Semantics::kvpress; }));
  CHECK(differs([](auto& s) { s.policies = {"snapkv", "h2o+fastcaote"}; }));
}

TEST_CASE("decode view: a budget for everything changes nothing") {
  const Dump dump = Dump::open(sample_dump());
  DecodeSettings settings;
  settings.policies = {"snapkv"};
  settings.append_only = true;
  settings.sigma_budget = false;
  settings.budget = 896;
  const DecodeView view = computed(dump, settings, 0, 1);
  const DecodeRun& appended = view.runs[1];
  REQUIRE(appended.append_only);
  CHECK(appended.error.front() == 0);
  CHECK(view.runs[0].error.front() == 0);  // the first step attends before anything leaves
  CHECK(view.runs[0].max > 0);             // then the decoded tokens push others out
}

TEST_CASE("decode view: policies that cannot decode are named, the others run") {
  const Dump dump = Dump::open(sample_dump());
  DecodeSettings settings;
  settings.policies = {"snapkv", "greedy_exact", "nonsense", "oracle"};
  const DecodePlan plan = decode_plan(settings, dump);
  CHECK(plan.plan.cases.size() == 1);
  REQUIRE(plan.left_out.size() == 3);
  CHECK(contains(plan.left_out[0].why, "whole prompt"));
  CHECK(contains(plan.left_out[1].why, "unknown policy"));
  settings.policies = {"oracle"};
  CHECK(contains(refusal_of(settings, dump), "oracle"));
  settings.policies = {};
  CHECK(contains(refusal_of(settings, dump), "at least one"));
  settings.policies = {"snapkv"};
  settings.sigma = 1.5;
  CHECK(contains(refusal_of(settings, dump), "between 0 and 1"));
  settings.sigma = 0.5;
  settings.decode = false;
  CHECK(contains(refusal_of(settings, dump), "append-only"));
  settings.decode = true;
  CHECK(contains(refusal_of(settings, Dump::open(sample_dump(), {1024})), "decoding steps"));
}

TEST_CASE("decode view: settings survive a session") {
  DecodeSettings settings;
  settings.policies = {"tova+key"};
  settings.decode = false;
  settings.append_only = true;
  settings.decode_window = 9;
  settings.pool = Pooling{Pooling::Kind::max, 3};
  settings.budget = 12;
  CHECK(settings_from<DecodeSettings>(nlohmann::json::parse(to_json(settings).dump()), "session") ==
        settings);
  CHECK(settings_from<DecodeSettings>(nlohmann::json::object(), "session") == DecodeSettings{});
  CHECK_THROWS_AS(settings_from<DecodeSettings>({{"policies", "h2o"}}, "session"), InputError);
  CHECK_THROWS_AS(settings_from<DecodeSettings>({{"policies", {1}}}, "session"), InputError);
  CHECK_THROWS_AS(settings_from<DecodeSettings>({{"decode_window", -1}}, "session"), InputError);
}
