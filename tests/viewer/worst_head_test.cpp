#include "viewer/questions/worst_head.hpp"

#include "tests/analysis/kvreplay_program.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"
#include "viewer/questions/run.hpp"
#include "viewer/questions/what_if_figures.hpp"

#include <chrono>
#include <functional>
#include <optional>

using namespace kvreplay;
using namespace kvreplay::viewer;

namespace {

/// A queue at which one run is open.
struct Open {
  AppState state;
  JobQueue queue{{2, std::size_t{1} << 30, {}}};
  PanelContext context{state, queue};

  explicit Open(const std::string& path) { state.runs.push_back(Run::open(path, 1)); }

  /// Asks and waits in turn until nothing is pending.
  template <class Ask>
  void settle(const Ask& ask) {
    for (int i = 0; i < 1000; ++i) {
      queue.next_frame();
      if (!ask()) return;
      REQUIRE(queue.wait_idle(std::chrono::minutes(5)));
    }
    FAIL("never settled");
  }
  double error(const WhatIfSettings& settings, Index layer, Index kv_head) {
    Answer<WhatIf> answer;
    settle([&] {
      answer = ask_what_if(context, settings, layer, kv_head, Urgency::now, {});
      return answer.pending;
    });
    REQUIRE(answer);
    return answer->future.error;
  }
};

}  // namespace

TEST_CASE("most is at stake where the setting costs most beyond the exact order", "[worst_head]") {
  Open open(test::sample_dump());
  for (const char* base : {"snapkv", "streaming"})
    for (const double sigma : {0.8, 0.5}) {
      INFO(base << " " << sigma);
      open.state.setting_a.base = base;
      open.state.budget.sigma = sigma;
      WorstHead worst;
      std::optional<std::pair<Index, Index>> found;
      open.settle([&] {
        found = worst.look(open.context);
        return worst.pending();
      });
      REQUIRE(found);
      const WhatIfSettings a = open.state.settings()[0];
      WhatIfSettings exact;
      exact.base = "oracle_exact";
      exact.linked = false;
      exact.sigma = sigma;
      std::pair<Index, Index> most{-1, -1};
      double largest = -1e300;
      const DumpShape& shape = open.state.run()->shape();
      for (Index layer = 0; layer < shape.layers; ++layer)
        for (Index head = 0; head < shape.n_kv; ++head) {
          const double beyond = open.error(a, layer, head) - open.error(exact, layer, head);
          if (beyond <= largest) continue;
          largest = beyond;
          most = {layer, head};
        }
      CHECK(*found == most);
      CHECK(largest > 0);
    }
}

TEST_CASE("a head cannot be worst before it is known, nor by a setting that cannot be followed",
          "[worst_head]") {
  Open open(test::sample_dump());
  WorstHead worst;
  CHECK_FALSE(worst.look(open.context).has_value());
  CHECK(worst.pending());
  open.state.setting_a.base = "no such policy";
  std::optional<std::pair<Index, Index>> found;
  open.settle([&] {
    found = worst.look(open.context);
    return worst.pending();
  });
  CHECK_FALSE(found);
}
