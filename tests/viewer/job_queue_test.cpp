#include "viewer/questions/job_queue.hpp"

#include "data/error.hpp"
#include "tests/support/catch.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using namespace std::chrono_literals;

namespace {

struct Sized {
  std::size_t bytes = 0;
};
std::size_t bytes_of(const Sized& sized) { return sized.bytes; }

/// Runs until it is cancelled.
int endless(JobControl& job) {
  while (true) {
    job.check();
    std::this_thread::sleep_for(1ms);
  }
}

JobRequest named(const Key& key) { return {.key = key, .title = "a title"}; }

void wait_until(const std::function<bool()>& holds) {
  for (int i = 0; i < 60000 && !holds(); ++i) std::this_thread::sleep_for(1ms);
  REQUIRE(holds());
}

}  // namespace

TEST_CASE("the queue answers a request once and keeps the answer") {
  std::atomic<int> computed = 0, told = 0;
  JobQueue queue({2, std::size_t{1} << 20, [&] { ++told; }});
  const auto ask = [&] { return queue.ask<int>(named("a"), [&](JobControl&) { return ++computed, 7; }); };
  const Answer<int> first = ask();
  CHECK(first.pending);
  CHECK_FALSE(first);
  REQUIRE(queue.wait_idle(10min));
  queue.next_frame();
  const Answer<int> second = ask();
  REQUIRE(second);
  CHECK(*second == 7);
  CHECK_FALSE(second.pending);
  CHECK(computed == 1);
  wait_until([&] { return told == 1; });
  CHECK(queue.version() == 1);
  CHECK(queue.log().front().title == "a title");
}

TEST_CASE("the queue cancels what no frame asks for any more") {
  JobQueue queue({1, std::size_t{1} << 20, {}});
  queue.ask<int>(named("endless"), endless);
  wait_until([&] { return !queue.jobs().empty() && queue.jobs().front().running; });
  queue.next_frame();
  queue.ask<int>(named("endless"), endless);
  queue.next_frame();
  CHECK(queue.open_jobs() == 1);  // the last frame asked
  queue.next_frame();
  REQUIRE(queue.wait_idle(10min));
  CHECK(queue.log().front().cancelled);
}

TEST_CASE("the queue carries a lasting request to its end") {
  JobQueue queue({1, std::size_t{1} << 20, {}});
  std::atomic<bool> go = false;
  JobRequest request = named("lasting");
  request.lasting = true;
  queue.ask<int>(request, [&](JobControl& job) {
    while (!go) job.check(), std::this_thread::sleep_for(1ms);
    return 1;
  });
  for (int i = 0; i < 3; ++i) queue.next_frame();
  go = true;
  REQUIRE(queue.wait_idle(10min));
  CHECK(queue.ask<int>(request, [](JobControl&) { return 2; }).value != nullptr);
}

TEST_CASE("the queue takes urgent requests first, and serves a hand while long work runs") {
  JobQueue queue({1, std::size_t{1} << 20, {}});
  JobRequest slow = named("slow");
  slow.urgency = Urgency::background;
  slow.lasting = true;
  JobRequest other = named("other");
  other.urgency = Urgency::background;
  other.lasting = true;
  queue.ask<int>(slow, endless);
  queue.ask<int>(other, endless);
  wait_until([&] { return queue.jobs().front().running; });
  JobRequest urgent = named("urgent");
  urgent.urgency = Urgency::now;
  queue.ask<int>(urgent, [](JobControl&) { return 3; });
  wait_until([&] {
    const auto answer = queue.ask<int>(urgent, [](JobControl&) { return 4; });
    return answer.value != nullptr && *answer == 3;
  });
}

TEST_CASE("what nobody asked for comes last, though it was asked first") {
  JobQueue queue({1, std::size_t{1} << 20, {}});
  std::atomic<bool> go = false;
  std::vector<std::string> order;  // one thread takes both
  JobRequest first = named("first");
  first.urgency = Urgency::background;
  first.lasting = true;
  queue.ask<int>(first, [&](JobControl& job) {
    while (!go) job.check(), std::this_thread::sleep_for(1ms);
    return 0;
  });
  wait_until([&] { return queue.jobs().front().running; });
  for (const Urgency urgency : {Urgency::idle, Urgency::background}) {
    const std::string name = urgency == Urgency::idle ? "findings" : "all heads";
    JobRequest request = named(name);
    request.urgency = urgency;
    request.lasting = true;
    queue.ask<int>(request, [&order, name](JobControl&) {
      order.push_back(name);
      return 0;
    });
  }
  go = true;
  REQUIRE(queue.wait_idle(10min));
  CHECK(order == std::vector<std::string>{"all heads", "findings"});
}

TEST_CASE("only what something older may stand in for counts as waited for in view") {
  JobQueue queue({1, std::size_t{1} << 20, {}});
  const auto in_view = [&](Urgency urgency, bool fills) {
    const std::uint64_t before = queue.unanswered().in_view;
    JobRequest request = named({"question", static_cast<int>(urgency), fills});
    request.urgency = urgency;
    request.fills = fills;
    queue.ask<int>(request, endless);
    return queue.unanswered().in_view != before;
  };
  CHECK(in_view(Urgency::now, false));
  CHECK(in_view(Urgency::soon, false));
  CHECK_FALSE(in_view(Urgency::soon, true));
  CHECK_FALSE(in_view(Urgency::background, false));
  CHECK_FALSE(in_view(Urgency::idle, false));
}

TEST_CASE("an answer of the same slot stands in while the newest request is open") {
  JobQueue queue({1, std::size_t{1} << 20, {}});
  JobRequest first = named({"slider", 1}), second = named({"slider", 2});
  first.slot = second.slot = "slider";
  queue.ask<int>(first, [](JobControl&) { return 1; });
  REQUIRE(queue.wait_idle(10min));
  std::atomic<bool> go = false;
  const auto ask_second = [&] {
    return queue.ask<int>(second, [&](JobControl& job) {
      while (!go) job.check(), std::this_thread::sleep_for(1ms);
      return 2;
    });
  };
  const Answer<int> meanwhile = ask_second();
  REQUIRE(meanwhile);
  CHECK(*meanwhile == 1);
  CHECK(meanwhile.stale);
  CHECK(meanwhile.pending);
  go = true;
  REQUIRE(queue.wait_idle(10min));
  const Answer<int> then = ask_second();
  CHECK(*then == 2);
  CHECK_FALSE(then.stale);
}

TEST_CASE("the queue tells errors as one line until they are forgotten") {
  JobQueue queue({1, std::size_t{1} << 20, {}});
  int tries = 0;
  const auto ask = [&] {
    return queue.ask<int>(named("bad"), [&](JobControl&) -> int {
      if (++tries == 1) throw InputError("k.npy", "numbers", "none");
      return 5;
    });
  };
  ask();
  REQUIRE(queue.wait_idle(10min));
  const Answer<int> failed = ask();
  CHECK_FALSE(failed);
  CHECK_FALSE(failed.pending);
  CHECK(failed.error == "k.npy: expected numbers, found none");
  queue.forget_errors();
  ask();
  REQUIRE(queue.wait_idle(10min));
  CHECK(*ask() == 5);
}

TEST_CASE("a job cancelled by hand stays cancelled until it is forgotten") {
  JobQueue queue({1, std::size_t{1} << 20, {}});
  queue.ask<int>(named({"run", 1, "x"}), endless);
  queue.cancel({"run", 1, "x"});
  REQUIRE(queue.wait_idle(10min));
  CHECK(queue.ask<int>(named({"run", 1, "x"}), endless).error == "cancelled");
  queue.forget({"run", 1});
  queue.ask<int>(named({"run", 1, "x"}), [](JobControl&) { return 1; });
  REQUIRE(queue.wait_idle(10min));
  CHECK(*queue.ask<int>(named({"run", 1, "x"}), endless) == 1);
}

TEST_CASE("a request that is asked again while its cancelled job still runs gets its own answer") {
  JobQueue queue({1, std::size_t{1} << 20, {}});
  std::atomic<bool> started = false, go = false;
  queue.ask<int>(named("q"), [&](JobControl&) {
    started = true;
    while (!go) std::this_thread::sleep_for(1ms);  // deaf to the cancellation
    return 1;
  });
  wait_until([&] { return started.load(); });
  queue.next_frame();
  queue.next_frame();
  queue.ask<int>(named("q"), [](JobControl&) { return 2; });
  go = true;
  REQUIRE(queue.wait_idle(10min));
  CHECK(*queue.ask<int>(named("q"), [](JobControl&) { return 3; }) == 2);
}

TEST_CASE("the queue keeps answers up to its limit, and those in use beyond it") {
  JobQueue queue({1, 1000, {}});
  const auto ask = [&](const std::string& key) {
    return queue.ask<Sized>(named(key), [](JobControl&) { return Sized{400}; });
  };
  for (const char* key : {"a", "b", "c", "d"}) {
    ask(key);
    REQUIRE(queue.wait_idle(10min));
    queue.next_frame();
    queue.next_frame();
  }
  CHECK(queue.cached_bytes() <= 1000);
  CHECK(ask("d"));
  CHECK_FALSE(ask("a"));
  REQUIRE(queue.wait_idle(10min));
  const Answer<Sized> held = ask("a");
  queue.set_cache_limit(0);
  CHECK(held->bytes == 400);
  CHECK(ask("a"));  // asked by this frame: not dropped
}

TEST_CASE("a queue that is closed ends its jobs") {
  {
    JobQueue queue({2, 1000, {}});
    queue.ask<int>(named("x"), endless);
    queue.ask<int>(named("y"), endless);
    wait_until([&] { return queue.jobs().front().running; });
  }
  SUCCEED("it came back");
}

TEST_CASE("a job waits for the backend that has not started yet, and no other does") {
  class Late final : public Backend {
   public:
    std::string_view name() const override { return "late"; }
  };
  std::promise<std::shared_ptr<const Backend>> start;
  JobQueue queue({2, std::size_t{1} << 20, {}, start.get_future().share()});
  const auto name = [&] {
    return queue.ask<std::string>(named("name"),
                                  [](JobControl& job) { return std::string(job.compute().backend.name()); });
  };
  const auto other = [&] { return queue.ask<int>(named("other"), [](JobControl&) { return 7; }); };
  CHECK(name().pending);
  other();
  wait_until([&] { return static_cast<bool>(other()); });
  CHECK(name().pending);
  start.set_value(std::make_shared<const Late>());
  REQUIRE(queue.wait_idle(10min));
  CHECK(*name() == "late");

  JobQueue on_cpu({1, std::size_t{1} << 20, {}});
  on_cpu.ask<std::string>(named("name"),
                          [](JobControl& job) { return std::string(job.compute().backend.name()); });
  REQUIRE(on_cpu.wait_idle(10min));
  CHECK(*on_cpu.ask<std::string>(named("name"), [](JobControl&) { return std::string(); }) == "cpu");
}
