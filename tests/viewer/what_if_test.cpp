#include "viewer/questions/what_if.hpp"

#include "data/error.hpp"
#include "data/npy_write.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/data/expect_error.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/random_group.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer/on_queue.hpp"
#include "tests/viewer/what_if_runs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <thread>

using namespace kvreplay;
using namespace kvreplay::viewer;
using namespace kvreplay::test;
using namespace std::chrono_literals;

namespace {

/// Numbers without equals, in no order.
double value_at(Index i) { return static_cast<double>(i * 7919 % 104729) / 3; }

UserScore written_score(const std::filesystem::path& file, const std::array<std::size_t, 3>& shape) {
  std::vector<double> values(shape[0] * shape[1] * shape[2]);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = value_at(static_cast<Index>(i));
  write_npy(file, shape, values);
  return user_score_of(file);
}

WhatIfSettings settings_of(const std::string& policy) {
  WhatIfSettings settings;
  const std::size_t mark = policy.find_first_of("+:");
  settings.base = policy.substr(0, mark);
  if (settings.base != policy) settings.score = policy.substr(mark + 1);
  return settings;
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> items(1);
  for (const char c : list)
    if (c == ',')
      items.emplace_back();
    else
      items.back() += c;
  return items;
}

/// evictions.csv and the kept sets of `evict` against the same settings here, layer 1, both heads.
void check_against_program(const std::string& policies, const WhatIfSettings& common,
                           const std::vector<std::string>& more, const UserScore* score = nullptr) {
  const TempDir dir;
  std::vector<std::string> arguments = {"evict",    sample_dump(), "--out",    (dir / "r").string(),
                                        "--layers", "1",           "--policy", policies,
                                        "--quiet"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  succeed(arguments);
  const Evictions evictions(dir / "r");
  const Dump dump = Dump::open(sample_dump());
  for (const std::string& policy : split(policies)) {
    WhatIfSettings settings = common;
    settings.base = settings_of(policy).base;
    settings.score = settings_of(policy).score;
    const EvictionPlan plan = what_if_plan(settings, dump, score);
    const std::string phase = plan.cases.front().phase.name();
    const std::string run = fmt::format("{},{},{},{}", policy, name_of(settings.semantics), phase,
                                        plan.cases.front().budget_label);
    const Npy kept = npy_file(dir / "r/layer_01/kept" / (plan.cases.front().file_name() + ".npy"));
    for (Index head = 0; head < 2; ++head) {
      INFO(run << ", head " << head);
      const WhatIf found = computed(dump, settings, 1, head, score);
      const std::string scope = fmt::format("1,{}", head);
      CHECK(found.window.error == evictions.at(scope, run, "window", "output_error"));
      CHECK(found.future.error == evictions.at(scope, run, "future", "output_error"));
      CHECK(found.eviction_loss == evictions.at(scope, run, "future", "eviction_loss"));
      CHECK(found.optimality_gap == evictions.at(scope, run, "future", "optimality_gap"));
      CHECK(found.oracle_recall == evictions.at(scope, run, "future", "oracle_recall"));
      CHECK(found.bytes == evictions.at(scope, run, "", "bytes"));
      CHECK(kept.data.substr(static_cast<std::size_t>(head) * 896, 896) ==
            std::string(found.kept.begin(), found.kept.end()));
      CHECK(found.tokens == count(found.kept));
    }
  }
}

}  // namespace

TEST_CASE("what if: the figures of kvreplay evict in fewer bits") {
  const std::vector<std::array<std::string, 3>> all = {
      {"4", "none", "none"}, {"kq4_0v16", "hadamard", "k"}, {"q8_0;1:nvfp4", "k", "k:4"}};
  for (const auto& [bits, rotate, center] : all) {
    WhatIfSettings settings;
    settings.bits = OptionValue<CacheFormat>::parse(evict_option::bits, bits);
    settings.rotate = OptionValue<Rotation>::parse(evict_option::rotate, rotate);
    settings.center = OptionValue<Centering>::parse(evict_option::center, center);
    check_against_program("h2o,snapkv", settings,
                          {"--keep", "20%", "--bits", bits, "--rotate", rotate, "--center", center});
    WhatIfSettings restored, exact = settings;  // from a session
    read_json(bound(restored), to_json(bound(settings)), "settings");
    CHECK(restored == settings);
    exact.bits.reset();
    const Dump dump = Dump::open(sample_dump());
    const WhatIf stored = computed(dump, settings, 1, 0), as_it_is = computed(dump, exact, 1, 0);
    CHECK(stored.kept == as_it_is.kept);
    CHECK(stored.bytes < as_it_is.bytes);
    CHECK(stored.future.error != as_it_is.future.error);
  }
  WhatIfSettings several;
  several.bits = OptionValue<CacheFormat>::parse(evict_option::bits, "vllm");
  expect_error([&] { what_if_plan(several, Dump::open(sample_dump())); },
               {"bits: expected one format, found vllm"});
}

TEST_CASE("what if: the figures of kvreplay evict, under each semantics") {
  const auto semantics = GENERATE(Semantics::paper, Semantics::official, Semantics::kvpress);
  WhatIfSettings settings;
  settings.semantics = semantics;
  settings.sigma = 0.9;
  check_against_program(
      "h2o,tova,tova+value,snapkv,snapkv+joint,keydiff,knorm,streaming,expected_attention,oracle,score:joint",
      settings, {"--semantics", std::string(name_of(semantics)), "--sigma", "0.9"});
}

TEST_CASE("what if: the figures of kvreplay evict with a window, pins and pooling of one's own, in blocks") {
  WhatIfSettings settings;
  settings.sigma_budget = false;
  settings.budget = 100;
  settings.window = 16;
  settings.sinks = 2;
  settings.recent = 8;
  settings.pool = Pooling{Pooling::Kind::avg, 5};
  settings.block = 64;
  check_against_program("h2o+key,snapkv,keydiff", settings,
                        {"--budget", "100", "--window", "16", "--sinks", "2", "--recent", "8", "--pool",
                         "avg:5", "--phase", "blockwise:64"});
}

TEST_CASE("what if: the figures of kvreplay evict by a score of the user's") {
  const TempDir dir;
  const UserScore score = written_score(dir / "mine.npy", {6, 2, 896});
  WhatIfSettings settings;
  settings.sigma = 0.9;
  settings.semantics = GENERATE(Semantics::paper, Semantics::kvpress);
  check_against_program(
      "h2o+mine,snapkv+mine,tova+mine,score:mine", settings,
      {"--semantics", std::string(name_of(settings.semantics)), "--sigma", "0.9", "--score", score.item()},
      &score);
}

TEST_CASE("what if: a user's score alone keeps its largest values, each head by its own") {
  const TempDir dir;
  const UserScore score = written_score(dir / "mine.npy", {6, 2, 896});
  const Dump dump = Dump::open(sample_dump());
  WhatIfSettings settings = settings_of("h2o+mine");
  settings.sigma_budget = false;
  settings.budget = 37;
  settings.sinks = settings.recent = 0;
  settings.pool = Pooling{};
  for (const auto& [layer, head] : {std::pair<Index, Index>{0, 0}, {4, 1}}) {
    const WhatIf found = computed(dump, settings, layer, head, &score);
    std::vector<Index> order(896);
    std::iota(order.begin(), order.end(), Index{0});
    std::sort(order.begin(), order.end(), [first = (layer * 2 + head) * 896](Index a, Index b) {
      return value_at(first + a) > value_at(first + b);
    });
    KeptSet expected(896, 0);
    for (std::size_t i = 0; i < 37; ++i) expected[order[i]] = 1;
    CHECK(found.kept == expected);
  }
}

TEST_CASE("what if: a user's score that does not fit is refused with file, expectation and finding") {
  const TempDir dir;
  const Dump dump = Dump::open(sample_dump());
  const auto complaint = [&](const UserScore& score) {
    try {
      read_user_score(score, dump);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const UserScore small = written_score(dir / "small.npy", {6, 2, 895});
  const std::string line = complaint(small);
  INFO(line);
  CHECK(line.find("small.npy") != std::string::npos);
  CHECK(line.find("896") != std::string::npos);
  CHECK(line.find("895") != std::string::npos);
  CHECK(line.find('\n') == std::string::npos);
  CHECK(complaint(user_score("mine=" + (dir / "none.npy").string())).find("none.npy") != std::string::npos);
  const UserScore fits = written_score(dir / "attn.npy", {6, 2, 896});
  CHECK(complaint(fits).find("'attn', which is taken") != std::string::npos);
  std::vector<double> bad(6 * 2 * 896, 1.0);
  bad[5] = std::numeric_limits<double>::quiet_NaN();
  const std::array<std::size_t, 3> shape{6, 2, 896};
  write_npy(dir / "bad.npy", shape, bad);
  CHECK(complaint(user_score_of(dir / "bad.npy")).find("NaN at layer 0, head 0, position 5") !=
        std::string::npos);
  for (const char* item : {"", "mine", "=x.npy", "mine="}) CHECK_THROWS_AS(user_score(item), InputError);
}

TEST_CASE("what if: a user's score is named after its file") {
  CHECK(user_score_of("/a/my score-2.v1.npy").name == "my_score_2.v1");
  CHECK(user_score_of("/a/plain.npy").item() == "plain=/a/plain.npy");
  CHECK(user_score_of("/a/.npy").name.front() == '_');
  CHECK(user_score("x=/a/b=c.npy").file == "/a/b=c.npy");
  const std::vector<UserScore> both{user_score_of("/a/one.npy"), user_score_of("/a/two.npy")};
  CHECK(find_score(both, "two") == &both[1]);
  CHECK(find_score(both, "three") == nullptr);
}

TEST_CASE("what if: the figures of kvreplay evict by exact search, on window and future") {
  WhatIfSettings settings;
  settings.sigma_budget = false;
  settings.budget = 40;
  settings.on_future = GENERATE(false, true);
  check_against_program("greedy_exact,exchange,exchange+snapkv", settings,
                        {"--budget", "40", "--on", settings.on_future ? "future" : "window"});
}

TEST_CASE("what if: one ranking serves every budget, pooling and pin that shares its key") {
  const Dump dump = Dump::open(sample_dump());
  const auto group = load_head_group<float>(dump, 2, 1);
  const std::string policy = GENERATE("snapkv+joint", "h2o", "greedy_exact", "streaming", "keydiff");
  INFO(policy);
  WhatIfSettings first = settings_of(policy), second = first;
  second.sigma = 0.3;
  second.sinks = 3;
  second.pool = Pooling{Pooling::Kind::avg, 9};
  const EvictionPlan a = what_if_plan(first, dump), b = what_if_plan(second, dump);
  REQUIRE(score_key(a) == score_key(b));
  const WhatIf shared = on_queue([&](JobControl& job) {
    return what_if(group, b, what_if_ranking(group, a, nullptr, {}, job), what_if_importance(group, job),
                   job);
  });
  const WhatIf own = computed(dump, second, 2, 1);
  CHECK(shared.kept == own.kept);
  CHECK(shared.future.change_sq == own.future.change_sq);
  CHECK(shared.kept != computed(dump, first, 2, 1).kept);
}

TEST_CASE("what if: settings that rank differently have different keys") {
  const Dump dump = Dump::open(sample_dump());
  std::vector<WhatIfSettings> all;
  for (const char* policy :
       {"snapkv", "snapkv+value", "h2o", "tova", "knorm", "streaming", "expected_attention", "greedy_exact",
        "exchange", "exchange+snapkv", "criticalkv"})
    all.push_back(settings_of(policy));
  for (const char* policy : {"h2o", "tova", "expected_attention"}) {
    all.push_back(settings_of(policy));
    all.back().semantics = Semantics::kvpress;
  }
  all.push_back(settings_of("snapkv"));
  all.back().window = 7;
  all.push_back(settings_of("greedy_exact"));
  all.back().on_future = true;
  all.push_back(settings_of("greedy_exact"));
  all.back().window = 7;
  std::set<Key> keys;
  for (const WhatIfSettings& settings : all) keys.insert(score_key(what_if_plan(settings, dump)));
  CHECK(keys.size() == all.size());
}

TEST_CASE("what if: keeping everything changes nothing, keeping nothing loses the prompt") {
  const Dump dump = Dump::open(sample_dump());
  WhatIfSettings settings;
  settings.sigma_budget = false;
  settings.budget = 896;
  const WhatIf all = computed(dump, settings, 0, 0);
  CHECK(all.window.error == 0);
  CHECK(all.future.error == 0);
  CHECK(all.eviction_loss == 0);
  CHECK(all.oracle_recall == 1);
  CHECK(all.bytes == all.prompt_bytes);
  CHECK(all.window.rows == 32);
  CHECK(all.future.rows == 128);
  settings.budget = 0;
  const WhatIf none = computed(dump, settings, 0, 0);
  CHECK(none.tokens == 0);
  CHECK(none.window.error == 1);  // a row that sees nothing has output 0
  CHECK(none.future.error > 0);
  CHECK(none.eviction_loss > 0);
  CHECK(std::isnan(none.oracle_recall));
  CHECK(none.bytes == 0);
  const KeptDifference difference = kept_difference(all.kept, none.kept);
  CHECK(difference.both == 0);
  CHECK(difference.only_first == 896);
  CHECK(difference.only_second == 0);
}

TEST_CASE("what if: a dump without decoding steps has figures of the window only") {
  const Dump dump = Dump::open(sample_dump(), {1024});
  const WhatIf found = computed(dump, {}, 1, 0);
  CHECK(found.window.error > 0);
  CHECK(found.future.rows == 0);
  CHECK(std::isnan(found.future.error));
  CHECK(std::isnan(found.eviction_loss));
  WhatIfSettings oracle;
  oracle.base = "oracle";
  CHECK_THROWS_AS(what_if_plan(oracle, dump), InputError);
  WhatIfSettings search;
  search.base = "greedy_exact";
  CHECK_NOTHROW(what_if_plan(search, dump));
  search.on_future = true;
  CHECK(contains(refusal_of([&] { what_if_plan(search, dump); }), "decoding steps"));
}

TEST_CASE("what if: why settings cannot be followed, in a line") {
  const Dump dump = Dump::open(sample_dump());
  const auto reason = [&](const auto& change) {
    WhatIfSettings settings;
    change(settings);
    const std::string line = refusal_of([&] { what_if_plan(settings, dump); });
    CHECK(line.find('\n') == std::string::npos);
    CHECK(line.find("--") == std::string::npos);
    return line;
  };
  CHECK(reason([](WhatIfSettings&) {}).empty());
  CHECK(contains(reason([](auto& s) { s.base = "snapvk"; }), "snapkv"));
  CHECK(contains(reason([](auto& s) { s.base = "none"; }), "policy"));
  CHECK(contains(reason([](auto& s) { s.base = ""; }), "unknown policy"));
  CHECK(contains(reason([](auto& s) { s.score = "jiont"; }), "unknown score"));
  CHECK(contains(reason([](auto& s) { s.base = "knorm", s.score = "joint"; }), "takes no score"));
  CHECK(contains(reason([](auto& s) { s.sigma = 1; }), "between 0 and 1"));
  CHECK(contains(reason([](auto& s) { s.sigma = NAN; }), "between 0 and 1"));
  CHECK(contains(reason([](auto& s) { s.sigma_budget = false, s.budget = 897; }), "896"));
  CHECK(contains(reason([](auto& s) { s.sigma_budget = false, s.budget = -1; }), "896"));
  CHECK(contains(reason([](auto& s) { s.sigma_budget = false, s.budget = 5, s.sinks = 6; }), "5 tokens"));
  CHECK(contains(reason([](auto& s) { s.pool = Pooling{Pooling::Kind::max, 4}; }), "odd"));
  CHECK(contains(reason([](auto& s) { s.base = "greedy_exact", s.block = 32; }), "whole prompt"));
  CHECK(contains(reason([](auto& s) { s.base = "tova", s.semantics = Semantics::kvpress, s.block = 32; }),
                 "whole layer"));
}

TEST_CASE("what if: a search that is no longer wanted stops soon") {
  const HeadGroup<double> group = random_group({.l = 6000, .T = 6016, .G = 4, .d = 64, .d_v = 64});
  EvictionPlan plan;
  plan.window = window_rows(6000, 0, 32);
  plan.runs.push_back({parse_policy("greedy_exact", {}), Semantics::paper, {}});
  plan.runs[0].rules.push_back(rule_of(plan.runs[0].policy, Semantics::paper, {}, 6000, 10, false));
  plan.cases.push_back({"greedy_exact", 0, 0, {}, 10, "paper", "10"});
  const auto single = std::make_shared<const HeadGroup<float>>(to_float(group));
  JobQueue queue({1, 1 << 20, {}});
  JobRequest request;
  request.key = request.title = "search";
  std::atomic<bool> started = false, finished = false;
  queue.ask<WhatIfRanking>(request, [&, single](JobControl& job) {
    started = true;
    WhatIfRanking ranking = what_if_ranking(*single, plan, nullptr, {}, job);
    finished = true;
    return ranking;
  });
  while (!started) std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(20ms);
  queue.cancel("search");
  REQUIRE(queue.wait_idle(10min));
  CHECK_FALSE(finished);
  CHECK(queue.log().front().cancelled);
}

TEST_CASE("what if: settings survive a session") {
  WhatIfSettings settings;
  settings.base = "exchange";
  settings.score = "h2o";
  settings.semantics = Semantics::official;
  settings.sigma_budget = false;
  settings.budget = 77;
  settings.sigma = 0.35;
  settings.window = 12;
  settings.recent = 0;
  settings.pool = Pooling{Pooling::Kind::avg, 9};
  settings.on_future = true;
  settings.block = 128;
  settings.compensation = Compensation::keepkv;
  const nlohmann::json written = nlohmann::json::parse(to_json(settings).dump());
  CHECK(settings_from<WhatIfSettings>(written, "session") == settings);
  CHECK(settings_from<WhatIfSettings>(nlohmann::json::object(), "session") == WhatIfSettings{});
  settings.pool = Pooling{};
  CHECK(settings_from<WhatIfSettings>(to_json(settings), "session").pool == Pooling{});
  const auto refused = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json broken = written;
    broken[key] = value;
    try {
      settings_from<WhatIfSettings>(broken, "session");
    } catch (const InputError& error) {
      return contains(error.what(), "session") && contains(error.what(), key);
    }
    return false;
  };
  CHECK(refused("semantics", "papers"));
  CHECK(refused("semantics", 3));
  CHECK(refused("budget", -1));
  CHECK(refused("budget", 1.5));
  CHECK(refused("budget", 18446744073709551615ULL));
  CHECK(refused("sigma", "half"));
  CHECK(refused("window", true));
  CHECK(refused("pool", "max:4"));
  CHECK(refused("base", nlohmann::json::array()));
  CHECK(refused("on_future", 1));
  CHECK(refused("compensate", "fitted"));
  CHECK_THROWS_AS(settings_from<WhatIfSettings>(nlohmann::json::array(), "session"), InputError);
}
