#include "data/error.hpp"
#include "sim/backend.hpp"
#include "sim/head_group.hpp"
#include "tests/sim/decode_cases.hpp"
#include "tests/support/cuda_devices.hpp"

#include <stdexcept>
#include <string>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

/// Runs over one group, and all that they point to.
class Runs {
 public:
  Runs(const HeadGroup<float>& group, Index budget, const std::vector<NamedRule>& rules,
       const std::vector<DecodeOptions>& options, const std::vector<KeptSet>& starts)
      : group_(group), rules_(rules), starts_(starts), full_(decode_full_outputs(group, workers_)) {
    scores_.reserve(rules.size() * options.size());
    for (const NamedRule& named : rules_)
      for (const DecodeOptions& with : options) {
        if (!decodes_on_device(named.rule, with)) continue;
        scores_.push_back(decode_start_scores(group, named.rule, with, workers_));
        for (const KeptSet& start : starts_) {
          runs_.push_back({&named.rule, &start, budget, with, &scores_.back()});
          names_.push_back(fmt::format("{}{}, start of {}", named.name, name_of_options(with), count(start)));
        }
      }
  }
  Runs(const Runs&) = delete;

  const std::vector<DecodeRequest>& runs() const { return runs_; }
  const std::string& name(std::size_t run) const { return names_[run]; }
  Workers& workers() { return workers_; }

  std::vector<DecodeReplay<float>> on_device(std::span<const DecodeRequest> runs) {
    return decode_replays_cuda(group_, runs, full_, workers_);
  }
  std::vector<DecodeReplay<float>> on_device() { return on_device(runs_); }
  std::vector<DecodeReplay<float>> on_device(std::size_t workspace) {
    return decode_replays_cuda(group_, runs_, full_, workers_, workspace);
  }
  std::vector<DecodeReplay<float>> on_cpu() { return decode_replays(group_, runs_, full_, workers_); }

 private:
  const HeadGroup<float>& group_;
  Workers workers_{2};
  const std::vector<NamedRule> rules_;
  const std::vector<KeptSet> starts_;
  const std::vector<Matrix<float>> full_;
  std::vector<Matrix<double>> scores_;
  std::vector<DecodeRequest> runs_;
  std::vector<std::string> names_;
};

/// Compares every run with the judge.
void check(const std::string& name, const HeadGroup<float>& group, Runs& runs) {
  const HeadGroup<double> judged = to_double(group);
  const std::vector<DecodeReplay<float>> got = runs.on_device();
  REQUIRE(got.size() == runs.runs().size());
  for (std::size_t r = 0; r < got.size(); ++r) {
    const DecodeRequest& run = runs.runs()[r];
    const std::string lines = differences(
        fmt::format("{}, {}", name, runs.name(r)),
        decode_replay_reference(judged, *run.rule, *run.start, run.budget, run.options), got[r], kOfOutput32);
    INFO(lines);
    CHECK(lines.empty());
  }
}

void check_all_rules(const Unkind& unkind) {
  const HeadGroup<float> group = to_float(random_group(unkind.spec));
  Runs runs(group, unkind.budget, all_rules(group.l, unkind.budget, unkind.exact), {{}},
            {spread(group.l, unkind.budget)});
  check(unkind.name, group, runs);
}

void check_same(const DecodeReplay<float>& a, const DecodeReplay<float>& b) {
  CHECK(a.change_sq == b.change_sq);
  CHECK(a.full_sq == b.full_sq);
  CHECK(a.change == b.change);
  CHECK(a.kept == b.kept);
  CHECK(a.cache_size == b.cache_size);
  CHECK(a.left == b.left);
  CHECK(a.first_step == b.first_step);
}

std::vector<NamedRule> some_rules(Index l, Index budget) {
  std::vector<NamedRule> rules;
  for (const TokenMetric metric : {TokenMetric::attn, TokenMetric::exact_joint, TokenMetric::key,
                                   TokenMetric::value, TokenMetric::knorm})
    rules.push_back({std::string(name_of(metric)),
                     rule_named(EvictionBase::h2o, metric, Semantics::paper, l, budget, pins(1, 2))});
  rules.push_back({"streaming", rule_named(EvictionBase::streaming, {}, Semantics::paper, l, budget)});
  return rules;
}

}  // namespace

TEST_CASE("decoding on a device decides and errs as the reference does", "[cuda][decode]") {
  on_a_device([] {
    const std::vector<Unkind> groups = unkind_groups();
    for (std::size_t n = 0; n < groups.size() / 2; ++n) check_all_rules(groups[n]);
  });
}

TEST_CASE("decoding on a device decides as the reference does where numbers are unkind", "[cuda][decode]") {
  on_a_device([] {
    const std::vector<Unkind> groups = unkind_groups();
    for (std::size_t n = groups.size() / 2; n < groups.size(); ++n) check_all_rules(groups[n]);
  });
}

TEST_CASE("decoding on a device decides as the reference does where a sink holds all", "[cuda][decode]") {
  on_a_device([] {
    for (const Unkind& unkind : worthless_sinks()) {
      const HeadGroup<float> group = to_float(random_group(unkind.spec));
      const std::vector<NamedRule> rules{
          {unkind.name, rule_named(EvictionBase::h2o, TokenMetric::attn, Semantics::paper, group.l,
                                   unkind.budget, pins(0, 2))}};
      Runs runs(group, unkind.budget, rules, {DecodeOptions{}}, {spread(group.l, unkind.budget)});
      const std::vector<DecodeReplay<float>> got = runs.on_device();
      for (std::size_t r = 0; r < got.size(); ++r) {
        INFO(runs.name(r));
        CHECK(got[r].left == decode_replay_reference(to_double(group), *runs.runs()[r].rule,
                                                     *runs.runs()[r].start, unkind.budget, {})
                                 .left);
      }
    }
  });
}

TEST_CASE("a device counts windows, pins and starts of any size as the reference does", "[cuda][decode]") {
  on_a_device([] {
    const HeadGroup<float> whole = to_float(
        random_group({.l = 20, .T = 36, .G = 3, .d = 6, .d_v = 9, .sliding_window = 12, .seed = 41}));
    std::vector<Index> tokens = {0, 2, 3, 7, 8, 9, 12, 13, 15, 17, 18, 19};
    for (Index p = 20; p < 36; ++p) tokens.push_back(p);
    HeadGroup<float> group = cache_group(whole, tokens, 18);  // positions with gaps, queries from 18 on
    group.l = 12;
    Runs gaps(group, 6, some_rules(12, 6), all_options(), {spread(12, 0), spread(12, 3), spread(12, 12)});
    check("gaps", group, gaps);

    for (const Unkind& unkind : unkind_groups()) {
      if (unkind.spec.seed != 11 && unkind.spec.seed != 20 && unkind.spec.seed != 26) continue;
      group = to_float(random_group(unkind.spec));
      Runs runs(group, unkind.budget, all_rules(group.l, unkind.budget, unkind.exact),
                {{.window = 3}, {.append_only = true}}, {spread(group.l, unkind.budget)});
      check(unkind.name, group, runs);
    }
  });
}

// Query heads in blocks of 4, the last of one or two; values beyond one warp's part; more tokens than
// threads.
TEST_CASE("wide groups and long caches on a device agree with the CPU's", "[cuda][decode]") {
  on_a_device([] {
    const auto compare = [](const GroupSpec& spec, Index budget) {
      const HeadGroup<float> group = to_float(random_group(spec));
      Runs runs(group, budget, some_rules(group.l, budget), {{}, {.window = 2}},
                {spread(group.l, budget + 3)});
      const auto want = runs.on_cpu(), got = runs.on_device();
      for (std::size_t r = 0; r < got.size(); ++r) {
        INFO(runs.name(r));
        CHECK(got[r].left == want[r].left);
        CHECK(got[r].full_sq == want[r].full_sq);
        for (std::size_t step = 0; step < want[r].change_sq.size(); ++step)
          CHECK(std::sqrt(got[r].change_sq[step]) ==
                Approx(std::sqrt(want[r].change_sq[step])).margin(1e-6 * std::sqrt(want[r].full_sq[step])));
      }
    };
    compare({.l = 40, .T = 52, .G = 5, .d = 37, .d_v = 150, .seed = 51}, 30);
    compare({.l = 400, .T = 404, .G = 6, .d = 8, .d_v = 5, .attention_sink = 0, .seed = 52}, 330);
    // More than kLongest turns of all warps.
    compare({.l = 1200, .T = 1202, .T_q = 2, .G = 1, .d = 3, .d_v = 130, .seed = 53}, 1100);
  });
}

TEST_CASE("a cache that holds every token has no error on a device", "[cuda][decode]") {
  on_devices([] {
    const HeadGroup<float> group =
        to_float(random_group({.l = 60, .T = 75, .G = 3, .d = 16, .d_v = 5, .seed = 42}));
    Runs runs(group, 75, some_rules(60, 75), {{}}, {spread(60, 60)});
    for (const DecodeReplay<float>& replay : runs.on_device()) {
      CHECK(replay.change_sq == std::vector<double>(15, 0.0));
      CHECK(replay.cache_size == 75);
      CHECK(replay.left.empty());
    }
  });
}

TEST_CASE("on a device neither the runs beside one nor the room they have change a bit", "[cuda][decode]") {
  on_devices([] {
    const HeadGroup<float> group = to_float(
        random_group({.l = 40, .T = 50, .G = 3, .d = 9, .d_v = 11, .attention_sink = 0, .seed = 45}));
    Runs runs(group, 35, some_rules(40, 35), {{}, {.window = 4}}, {spread(40, 35)});
    const auto want = runs.on_device(), again = runs.on_device(), one_by_one = runs.on_device(0);
    for (std::size_t r = 0; r < want.size(); ++r) {
      INFO(runs.name(r));
      CHECK(want[r].change_sq.back() > 0);
      check_same(again[r], want[r]);
      check_same(one_by_one[r], want[r]);
    }
    check_same(runs.on_device(std::span(&runs.runs()[3], 1)).front(), want[3]);
    CHECK(runs.on_device(std::span<const DecodeRequest>()).empty());
  });
}

TEST_CASE("logits and values beyond float32 are an input error while decoding on a device",
          "[cuda][decode]") {
  on_devices([] {
    const auto run = [](double queries, double values, TokenMetric metric) {
      HeadGroup<double> group = random_group({.l = 9, .T = 16, .T_q = 7, .seed = 46});
      group.q[1].row(2) *= queries;
      group.v *= values;
      const HeadGroup<float> typed = to_float(group);
      Workers workers(1);
      const EvictionRule rule = rule_named(EvictionBase::h2o, metric, Semantics::paper, 9, 5);
      const KeptSet start = spread(9, 5);
      const Matrix<double> scores = Matrix<double>::Zero(1, 9);
      const std::vector<Matrix<float>> full(2, Matrix<float>::Zero(7, 8));
      const DecodeRequest asked{&rule, &start, 5, {}, &scores};
      decode_replays_cuda(typed, std::span(&asked, 1), full, workers);
    };
    CHECK_NOTHROW(run(1, 1, TokenMetric::joint));
    CHECK_THROWS_AS(run(1, 1e25, TokenMetric::joint), InputError);
    CHECK_THROWS_AS(run(1, 1, TokenMetric::caote), std::invalid_argument);  // the CPU's
    CHECK_NOTHROW(run(1, 1e25, TokenMetric::attn));
    std::string message;
    try {
      run(1e39, 1, TokenMetric::attn);
    } catch (const InputError& error) {
      message = error.what();
    }
    INFO(message);
    CHECK(message.find("query head 1, position 11") != std::string::npos);
  });
}

TEST_CASE("decoding on a device stops where it is asked to", "[cuda][decode]") {
  if (all_devices().empty()) return;
  const HeadGroup<float> group = to_float(random_group({}));
  Runs runs(group, 20, some_rules(40, 20), {{}}, {spread(40, 20)});
  runs.workers().stop();
  CHECK_THROWS_AS(runs.on_device(), Interrupted);
}
