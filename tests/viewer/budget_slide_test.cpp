// What a film shows, as `kvreplay evict` measures it.

#include "viewer/questions/budget_slide.hpp"

#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"
#include "viewer/questions/desk.hpp"
#include "viewer/questions/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using namespace kvreplay::test;

namespace {

struct Sliding {
  AppState state;
  Desk desk{{2, std::size_t{1} << 30, {}, {}}};

  BudgetSlide of(const std::string& dump, std::optional<BudgetSlide::Head> head,
                 const std::vector<Index>& budgets) {
    state.runs = {Run::open(dump, 1)};
    BudgetSlide slide(state.run(), head, state.settings(), budgets);
    PanelContext context{state, desk};
    while (!slide.done() && slide.error().empty()) {
      desk.next_frame();
      slide.ask(context);
      REQUIRE(desk.wait_idle(std::chrono::minutes(5)));
    }
    REQUIRE(slide.error().empty());
    return slide;
  }
};

/// The same budgets on the command line.
Evictions measured(const TempDir& dir, const std::string& dump, const std::string& budgets) {
  succeed({"evict", dump, "--out", (dir / "r").string(), "--policy", "snapkv,snapkv+joint", "--keep", budgets,
           "--quiet"});
  return Evictions(dir / "r");
}

}  // namespace

TEST_CASE("a slide's errors and kept sets are those of kvreplay evict, of a head and of all", "[film]") {
  const TempDir dir;
  const std::string dump = (dir / "dump").string();
  succeed({"synth", dump, "--prompt", "128", "--decode", "16", "--gradients", "4", "--quiet"});
  const Evictions evictions = measured(dir, dump, "90,20");
  const auto head = GENERATE(std::optional<BudgetSlide::Head>(), std::optional(BudgetSlide::Head{1, 0}));
  Sliding sliding;
  const BudgetSlide slide = sliding.of(dump, head, {128, 90, 20});
  CHECK(slide.on_future());
  const std::string scope = head ? "1,0" : ",", loss = head ? "loss_row" : "loss_step";
  constexpr std::array kPolicies = {"snapkv", "snapkv+joint"};
  for (std::size_t side = 0; side < 2; ++side) {
    CHECK(slide.steps()[0].sides[side].error == 0);
    CHECK(std::ranges::count(slide.steps()[0].sides[side].evicted, 0) == 128);
    for (std::size_t step = 1; step < 3; ++step) {
      const SlideSide& found = slide.steps()[step].sides[side];
      const Index budget = slide.steps()[step].budget;
      const std::string run = fmt::format("{},paper,prefill,{}", kPolicies[side], budget);
      INFO(scope << " " << run);
      CHECK(found.error == evictions.at(scope, run, "future", "output_error"));
      CHECK(found.nats == evictions.at(scope, run, "future", loss));
      Index sum = 0;
      for (const auto heads : found.evicted) sum += heads;
      CHECK(sum == (128 - budget) * slide.heads());
    }
  }
  CHECK(slide.largest_error() == std::max(slide.steps()[2].sides[0].error, slide.steps()[2].sides[1].error));
  CHECK(slide.largest_nats() > 0);
}

TEST_CASE("the first needed token that goes is found where most heads lack it", "[film]") {
  Sliding sliding;
  const BudgetSlide slide = sliding.of(sample_dump(), BudgetSlide::Head{3, 1}, {896, 800, 400, 100});
  CHECK_FALSE(slide.needed().of_question);
  CHECK(slide.needed().metric == TokenMetric::oracle_future);
  REQUIRE(slide.needed().tokens.size() == kDearest);
  for (std::size_t side = 0; side < 2; ++side) {
    const auto lost = slide.first_lost(side);
    REQUIRE(lost);
    const auto evicts = [&](std::size_t step, Index token) {
      return slide.steps()[step].sides[side].evicted[token] > 0;
    };
    CHECK(std::ranges::find(slide.needed().tokens, lost->token) != slide.needed().tokens.end());
    CHECK(evicts(lost->step, lost->token));
    for (const Index token : slide.needed().tokens) {
      CHECK_FALSE(evicts(lost->step - 1, token));
      if (token < lost->token) CHECK_FALSE(evicts(lost->step, token));
    }
  }
}

TEST_CASE("budgets slide by equal shares, each once", "[film]") {
  CHECK(sliding_budgets(1000, 3, 0.01) == std::vector<Index>{1000, 100, 10});
  const std::vector<Index> few = sliding_budgets(10, 40, 0.05);
  CHECK(few.front() == 10);
  CHECK(few.back() == 1);
  CHECK(std::ranges::adjacent_find(few, std::less_equal<>()) == few.end());
}

TEST_CASE("the dearest tokens are those of largest value", "[film]") {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  CHECK(dearest_tokens({1, 5, kNan, 5, 9, 2}, 3) == std::vector<Index>{1, 3, 4});
  CHECK(dearest_tokens({kNan, 4}, 3) == std::vector<Index>{1});
}
