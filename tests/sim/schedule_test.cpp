#include "sim/schedule.hpp"

#include "tests/support/catch.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace kvreplay;

TEST_CASE("every item runs exactly once", "[schedule]") {
  for (const int threads : {1, 2, 3, 8}) {
    Workers workers(threads);
    CHECK(workers.threads() == threads);
    for (const std::ptrdiff_t n : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(n);
      workers.parallel_for(n, [&](std::ptrdiff_t item) { ++runs[item]; });
      bool once = true;
      for (const std::atomic<int>& count : runs) once = once && count == 1;
      INFO(threads << " threads, " << n << " items");
      CHECK(once);
    }
  }
}

TEST_CASE("0 threads means as many as there are cores", "[schedule]") {
  Workers workers;
  CHECK(workers.threads() >= 1);
  CHECK(workers.threads() <= static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
}

TEST_CASE("one thread runs its items in order, on the calling thread", "[schedule]") {
  Workers workers(1);
  std::vector<std::ptrdiff_t> order;
  const std::thread::id caller = std::this_thread::get_id();
  bool on_caller = true;
  workers.parallel_for(20, [&](std::ptrdiff_t item) {
    order.push_back(item);
    on_caller = on_caller && std::this_thread::get_id() == caller;
  });
  CHECK(on_caller);
  REQUIRE(order.size() == 20);
  for (std::size_t n = 0; n < order.size(); ++n) CHECK(order[n] == static_cast<std::ptrdiff_t>(n));
}

TEST_CASE("calls nest", "[schedule]") {
  for (const int threads : {1, 2, 3, 8}) {
    Workers workers(threads);
    std::vector<std::atomic<int>> runs(6 * 5 * 4);
    workers.parallel_for(6, [&](std::ptrdiff_t a) {
      workers.parallel_for(5, [&, a](std::ptrdiff_t b) {
        workers.parallel_for(4, [&, a, b](std::ptrdiff_t c) { ++runs[(a * 5 + b) * 4 + c]; });
      });
    });
    bool once = true;
    for (const std::atomic<int>& count : runs) once = once && count == 1;
    INFO(threads << " threads");
    CHECK(once);
  }
}

TEST_CASE("the work of a nested call is done when the call returns", "[schedule]") {
  Workers workers(3);
  std::atomic<int> early{0};
  workers.parallel_for(50, [&](std::ptrdiff_t) {
    std::atomic<int> done{0};
    workers.parallel_for(8, [&](std::ptrdiff_t) { ++done; });
    if (done != 8) ++early;
  });
  CHECK(early == 0);
}

TEST_CASE("several threads may share one set of workers", "[schedule]") {
  Workers workers(2);
  std::atomic<int> runs{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&] {
      for (int n = 0; n < 20; ++n) workers.parallel_for(10, [&](std::ptrdiff_t) { ++runs; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(runs == 3 * 20 * 10);
}

TEST_CASE("an exception of a body comes out of the call, and the workers stay usable", "[schedule]") {
  for (const int threads : {1, 2, 8}) {
    Workers workers(threads);
    std::atomic<int> running{0};
    std::string message;
    try {
      workers.parallel_for(100, [&](std::ptrdiff_t item) {
        ++running;
        const bool fails = item == 7;
        --running;
        if (fails) throw std::runtime_error("item 7");
      });
    } catch (const std::runtime_error& error) {
      message = error.what();
    }
    INFO(threads << " threads");
    CHECK(message == "item 7");
    CHECK(running == 0);
    std::atomic<int> runs{0};
    workers.parallel_for(10, [&](std::ptrdiff_t) { ++runs; });
    CHECK(runs == 10);
  }
}

TEST_CASE("an exception crosses nested calls", "[schedule]") {
  Workers workers(3);
  CHECK_THROWS_AS(workers.parallel_for(4,
                                       [&](std::ptrdiff_t a) {
                                         workers.parallel_for(4, [a](std::ptrdiff_t b) {
                                           if (a == 2 && b == 1) throw std::out_of_range("inner");
                                         });
                                       }),
                  std::out_of_range);
}

TEST_CASE("stop() ends the work and gives Interrupted", "[schedule]") {
  for (const int threads : {1, 2, 8}) {
    INFO(threads << " threads");
    Workers workers(threads);
    std::atomic<int> runs{0};
    const auto body = [&](std::ptrdiff_t) {
      if (++runs == 3) workers.stop();
    };
    CHECK_THROWS_AS(workers.parallel_for(10000, body), Interrupted);
    CHECK(workers.stopping());
    CHECK(runs >= 3);
    CHECK(runs <= 3 + 100 * threads);
    CHECK_THROWS_AS(workers.parallel_for(1, [](std::ptrdiff_t) {}), Interrupted);
  }
}
