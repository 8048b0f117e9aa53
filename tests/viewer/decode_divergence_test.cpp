#include "tests/support/catch.hpp"
#include "tests/viewer/decode_runs.hpp"
#include "viewer/questions/decoding.hpp"

#include <cmath>
#include <limits>
#include <random>

using namespace kvreplay;
using namespace kvreplay::viewer;
using namespace kvreplay::test;

namespace {

/// A run over a prompt of l and some steps, with caches and errors at random.
DecodeRun random_run(std::mt19937& random, Index l, Index steps) {
  DecodeRun run;
  run.policy = "some";
  run.l = l;
  run.T = l + steps;
  run.first_step = l;
  for (Index p = 0; p < l; ++p) run.start.push_back(random() % 4 == 0 ? 0 : 1);
  std::vector<std::uint8_t> there = run.start;
  for (Index step = 0; step < steps; ++step) {
    there.push_back(1);
    run.error.push_back(static_cast<double>(random() % 1000));
    for (Index p = 0; p < l + step + 1; ++p)
      if (there[p] != 0 && random() % 16 == 0) {
        there[p] = 0;
        run.left.push_back({step, p});
      }
  }
  return run;
}

/// By the caches after every step, position by position.
std::optional<Divergence> slowly(const DecodeRun& run, const DecodeRun& reference) {
  for (Index step = 0; step < run.steps(); ++step) {
    const auto mine = cache_after(run, step), theirs = cache_after(reference, step);
    std::optional<Divergence> found;
    for (Index p = 0; p < run.l + step + 1; ++p) {
      if (mine[p] != 0 || theirs[p] == 0) continue;
      Index left = CacheFates::kWithPrompt;
      for (const DecodeMove& move : run.left)
        if (move.position == p) left = move.step;
      if (!found || left >= found->left_at) found = Divergence{0, step, p, left};
    }
    if (found && run.error[step] > 2 * reference.error[step]) return found;
  }
  return std::nullopt;
}

}  // namespace

TEST_CASE("a run diverges where it loses twice as much, for want of a token", "[decode_divergence]") {
  std::mt19937 random(11);
  int some = 0;
  for (int i = 0; i < 200; ++i) {
    INFO(i);
    const Index l = 1 + static_cast<Index>(random() % 20), steps = 1 + static_cast<Index>(random() % 9);
    DecodeRun run = random_run(random, l, steps), other = random_run(random, l, steps);
    if (i % 7 == 0) run.error[0] = std::numeric_limits<double>::quiet_NaN();
    if (i % 5 == 0) other = run;
    const auto found = first_divergence(run, cache_fates(run), other, cache_fates(other));
    const auto expected = slowly(run, other);
    REQUIRE(found.has_value() == expected.has_value());
    if (i % 5 == 0) CHECK_FALSE(found);  // never from itself
    if (!found) continue;
    ++some;
    CHECK(found->step == expected->step);
    CHECK(found->position == expected->position);
    CHECK(found->left_at == expected->left_at);
  }
  CHECK(some > 50);
}

TEST_CASE("runs diverge from the best of them, or each from the pinned run's", "[decode_divergence]") {
  const auto run_of = [](const char* policy, std::vector<double> error, Index lost) {
    DecodeRun run;
    run.policy = policy;
    run.l = 3;
    run.T = 3 + std::ssize(error);
    run.first_step = 3;
    run.start = {1, 1, 1};
    run.left = {{1, lost}};
    run.mean = 0;
    for (const double one : error) run.mean += one / static_cast<double>(error.size());
    run.error = std::move(error);
    return run;
  };
  const std::vector<DecodeRun> runs = {run_of("a", {1, 3, 9}, 0), run_of("b", {1, 1, 1}, 1),
                                       run_of("c", {1, 2, 5}, 2), run_of("d", {9, 1, 1}, 2)};
  const auto fates_of = [](const std::vector<DecodeRun>& of) {
    std::vector<CacheFates> fates;
    for (const DecodeRun& run : of) fates.push_back(cache_fates(run));
    return fates;
  };
  CHECK(least_error(runs) == 1);
  // "d" loses more at first, while it still has all that "b" has; "b" is the measure.
  auto found = divergences(runs, fates_of(runs), {}, {});
  REQUIRE(found.size() == 2);
  CHECK(found[0].run == 0);
  CHECK(found[0].step == 1);
  CHECK(found[0].position == 0);
  CHECK(found[1].run == 2);
  CHECK(found[1].step == 2);
  CHECK(found[1].left_at == 1);
  // Against a pinned run only what has its like there.
  const std::vector<DecodeRun> pinned = {run_of("c", {1, 1, 2}, 1)};
  found = divergences(runs, fates_of(runs), pinned, fates_of(pinned));
  REQUIRE(found.size() == 1);
  CHECK(found[0].run == 2);
  CHECK(found[0].step == 2);
  CHECK(found[0].position == 2);
  // From results alone nothing is known of caches.
  CHECK(divergences(runs, {}, {}, {}).empty());
  CHECK(divergences({}, {}, {}, {}).empty());
  std::vector<DecodeRun> unknown = {runs[0]};
  unknown[0].mean = std::numeric_limits<double>::quiet_NaN();
  CHECK_FALSE(least_error(unknown));
  CHECK(divergences(unknown, fates_of(unknown), {}, {}).empty());
}

TEST_CASE("a policy takes a window in brackets where it looks at one", "[decode_divergence]") {
  CHECK(with_window("snapkv", 16) == "snapkv[window=16]");
  CHECK(with_window("snapkv+joint", 16) == "snapkv+joint[window=16]");
  CHECK(with_window("snapkv[pool=avg:5]", 16) == "snapkv[pool=avg:5,window=16]");
  CHECK(with_window("streaming", 16) == "streaming");
  CHECK(with_window("no such policy", 16) == "no such policy");
  for (const char* policy : {"snapkv", "snapkv[pool=avg:5]", "streaming"}) {
    CHECK(is_with_window(with_window(policy, 16), policy));
    CHECK(is_with_window(policy, policy));
  }
  CHECK_FALSE(is_with_window("snapkv+joint[window=16]", "snapkv"));
  CHECK_FALSE(is_with_window("snapkv", "snapkv[window=16]"));
}
