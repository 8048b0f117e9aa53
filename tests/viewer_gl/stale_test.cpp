#include "tests/viewer_gl/dashboard.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::Dashboard;

namespace {

/// While it lives, the queue answers nothing.
class HeldBack {
 public:
  explicit HeldBack(JobQueue& queue) : queue_(queue) {
    const std::shared_future<void> free = free_.get_future().share();
    for (int i = 0; i < kJobs; ++i)
      (void)queue.ask<int>({.key = {"held back", ++asked_},
                            .title = "holds a thread",
                            .urgency = Urgency::now,
                            .lasting = true},
                           [free](JobControl&) {
                             free.wait();
                             return 0;
                           });
    // One for a hand, one for what is in view, and of two cores one for all else.
    constexpr int kQueueThreads = 3;
    const auto running = [&] {
      const auto jobs = queue_.jobs();
      return std::count_if(jobs.begin(), jobs.end(), [](const JobQueue::Job& job) { return job.running; });
    };
    const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (running() < kQueueThreads) {
      REQUIRE(std::chrono::steady_clock::now() < until);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  ~HeldBack() { free_.set_value(); }
  HeldBack(const HeldBack&) = delete;
  HeldBack& operator=(const HeldBack&) = delete;

 private:
  static constexpr int kJobs = 24;
  static inline int asked_ = 0;
  JobQueue& queue_;
  std::promise<void> free_;
};

constexpr int kWidth = 900, kHeight = 700;

int distance(Rgb a, Rgb b) {
  return std::max({std::abs(a.r - b.r), std::abs(a.g - b.g), std::abs(a.b - b.b)});
}

/// The pixels of one panel alone, in three moments: what was shown, what stands there while nothing is
/// answered, and what is shown then.
struct Moments {
  std::array<std::vector<Rgb>, 3> pictures;
  std::size_t panel_end;  // the first pixel below the panel

  Moments(Dashboard& dashboard, const std::function<void(AppState&)>& change) {
    dashboard.settle();
    const Area& area = dashboard.app.area(dashboard.app.focused());
    panel_end = static_cast<std::size_t>(area.y + area.height) * kWidth;
    pictures[0] = dashboard.host.pixels();
    {
      const HeldBack held(dashboard.app.queue());
      change(dashboard.app.state());
      for (int i = 0; i < 6; ++i) {
        dashboard.host.frame();
        dashboard.now += std::chrono::milliseconds(200);
      }
      pictures[1] = dashboard.host.pixels();
    }
    dashboard.now += std::chrono::seconds(60);
    dashboard.settle();
    pictures[2] = dashboard.host.pixels();
  }
  /// Pixels of something shown that still stand as they did and will look quite different, and all that will.
  std::pair<int, int> stale() const {
    constexpr int kSame = 6, kOther = 60;
    const ImU32 panel = theme().panel;
    const Rgb empty{static_cast<std::uint8_t>(panel >> IM_COL32_R_SHIFT),
                    static_cast<std::uint8_t>(panel >> IM_COL32_G_SHIFT),
                    static_cast<std::uint8_t>(panel >> IM_COL32_B_SHIFT)};
    int undimmed = 0, changing = 0;
    for (std::size_t i = 0; i < panel_end; ++i) {
      if (distance(pictures[0][i], pictures[2][i]) < kOther || distance(pictures[0][i], empty) < kOther)
        continue;
      ++changing;
      undimmed += distance(pictures[0][i], pictures[1][i]) < kSame ? 1 : 0;
    }
    return {undimmed, changing};
  }
};

}  // namespace

TEST_CASE("while answers are to come, nothing of another head or budget stands as if it were this one's",
          "[stale]") {
  struct Change {
    const char* what;
    std::function<void(AppState&)> make;
  };
  const Change changes[] = {
      {"another head", [](AppState& state) { state.select_head(0, 1); }},
      {"another budget", [](AppState& state) { state.budget.sigma = 0.35; }},
  };
  // These show what a result folder holds.
  const auto left_out = [](PanelKind kind) {
    return kind == PanelKind::validation || kind == PanelKind::recipes;
  };
  for (const PanelFacts& panel : kPanels)
    for (const Change& change : changes) {
      if (left_out(panel.id)) continue;
      INFO(panel.name << ", " << change.what);
      Dashboard dashboard(test::kSample, kWidth, kHeight);
      dashboard.app.state().select_head(3, 0);
      dashboard.app.state().show_kept = true;
      dashboard.app.state().select_cell(1000, 300);
      dashboard.app.layout().show(panel.id);
      dashboard.app.layout().maximise(panel.id);
      dashboard.app.focus(panel.id);
      dashboard.settle();
      const Moments moments(dashboard, change.make);
      const auto [undimmed, changing] = moments.stale();
      INFO(undimmed << " of " << changing << " changing pixels stand as they were");
      if (std::getenv("KVREPLAY_STALE_PICTURES") != nullptr)
        for (std::size_t i = 0; i < 3; ++i)
          write_picture(fmt::format("{}/{}-{}-{}.png", std::getenv("KVREPLAY_STALE_PICTURES"), panel.name,
                                    change.what, i),
                        moments.pictures[i], kWidth, kHeight);
      // A few by chance: digits that two numbers have in common.
      CHECK(undimmed <= std::max(30, changing / 50));
    }
}
