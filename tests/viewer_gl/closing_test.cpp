// The end of the application while its jobs run.

#include "tests/viewer_gl/dashboard.hpp"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::Dashboard;
using test::kSample;

namespace {

struct Counts {
  std::atomic<int> started = 0, ended = 0, woken_late = 0;
  std::atomic<bool> gone = false;
};

/// An application, its window, and jobs that end only when they are told to.
class Busy {
 public:
  static constexpr int kJobs = 60;

  explicit Busy(Counts& counts) : counts_(counts) {
    AppOptions options = Dashboard::options(kSample);
    options.wake = [&counts] {
      if (counts.gone) ++counts.woken_late;
    };
    app_.emplace(std::move(options));
    host_.emplace(*app_, 900, 600);
    while (!app_->state().run() || counts_.started == 0) {
      host_->frame();
      for (int i = 0; i < kJobs; ++i) ask(i);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    REQUIRE(app_->queue().open_jobs() > 1);
  }
  App& app() { return *app_; }
  /// Window first, as in the program.
  void close() {
    host_.reset();
    app_.reset();
    counts_.gone = true;
  }

 private:
  void ask(int i) {
    JobRequest request;
    request.key = request.title = fmt::format("busy {}", i);
    request.lasting = true;
    app_->queue().ask<int>(request, [&counts = counts_](JobControl& job) {
      ++counts.started;
      struct End {
        std::atomic<int>& ended;
        ~End() { ++ended; }
      } end{counts.ended};
      while (true) {
        job.check();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      return 0;
    });
  }

  Counts& counts_;
  std::optional<App> app_;
  std::optional<ScriptedHost> host_;
};

}  // namespace

TEST_CASE("closing: jobs that run are told to end, those that wait never start", "[closing]") {
  Counts counts;
  Busy busy(counts);
  busy.close();
  const int started = counts.started;
  CHECK(started >= 1);
  CHECK(started <= 4);  // as many as the queue has threads: waiting ones were not begun to be ended
  CHECK(counts.ended == started);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(counts.started == started);  // no thread is left
  CHECK(counts.woken_late == 0);
}

TEST_CASE("closing: quitting by its key while jobs run leaves the last frame whole", "[closing]") {
  Counts counts;
  Busy busy(counts);
  CHECK_FALSE(busy.app().quit());
  busy.app().perform(ActionId::quit);
  CHECK(busy.app().quit());
  busy.close();
  CHECK(counts.ended == counts.started);
}

TEST_CASE("closing: a run that is closed while its heads are computed ends their jobs", "[closing]") {
  Dashboard dashboard("");
  for (int round = 0; round < 5; ++round) {
    dashboard.app.open(kSample);
    while (!dashboard.app.state().run()) dashboard.host.frame();
    for (int i = 0; i < round; ++i) dashboard.host.frame();
    dashboard.app.perform(ActionId::close_run);
    CHECK(dashboard.app.state().runs.empty());
    dashboard.settle();
    CHECK(dashboard.app.queue().open_jobs() == 0);
  }
  const std::string failed = dashboard.failed_job();
  CHECK(failed == "");
}

TEST_CASE("closing: settings, reload and closing in any order leave nothing behind", "[closing]") {
  AppOptions options = Dashboard::options(kSample);
  options.open.push_back(kSample);
  std::optional<App> app(std::move(options));
  std::optional<ScriptedHost> host(std::in_place, *app, 900, 600);
  while (app->state().runs.size() < 2) host->frame();
  app->perform(ActionId::reload);
  host->frame();
  app->perform(ActionId::close_run);  // the reload of a run that is gone arrives later
  host->frame();
  app->perform(ActionId::next_layer);
  host->frame();
  host.reset();
  app.reset();
  SUCCEED();
}
