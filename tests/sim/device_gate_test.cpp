#include "sim/cuda/device_gate.hpp"

#include "sim/schedule.hpp"
#include "tests/support/catch.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

using namespace kvreplay;
using cuda::DeviceGate;

namespace {

/// Threads are seen to wait: no test depends on a time.
void until_waiting(const DeviceGate& gate, std::size_t n) {
  while (gate.waiting() != n) std::this_thread::yield();
}

}  // namespace

TEST_CASE("a call takes the device with the fewest calls, the first of several", "[cuda][gate]") {
  DeviceGate gate(3, 2);
  std::vector<std::optional<DeviceGate::Turn>> turns(6);
  std::vector<std::size_t> places;
  for (auto& turn : turns) places.push_back(turn.emplace(gate.enter()).place());
  CHECK(places == std::vector<std::size_t>{0, 1, 2, 0, 1, 2});
  turns[4].reset();
  turns[2].reset();
  turns[5].reset();
  CHECK(gate.running(2) == 0);
  const DeviceGate::Turn a = gate.enter(), b = gate.enter();
  CHECK(a.place() == 2);
  CHECK(b.place() == 1);
}

TEST_CASE("who asked first enters first", "[cuda][gate]") {
  DeviceGate gate(1, 1);
  std::optional<DeviceGate::Turn> held(gate.enter());
  std::mutex mutex;
  std::vector<int> order;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const DeviceGate::Turn turn = gate.enter();
      const std::lock_guard lock(mutex);
      order.push_back(i);
    });
    until_waiting(gate, static_cast<std::size_t>(i) + 1);
  }
  CHECK(order.empty());
  held.reset();
  for (std::thread& thread : threads) thread.join();
  CHECK(order == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7});
}

TEST_CASE("who wants a device alone waits for those there and holds up those to come", "[cuda][gate]") {
  DeviceGate gate(1, 4);
  std::optional<DeviceGate::Turn> first(gate.enter()), second(gate.enter());
  std::atomic<int> stage{0};
  std::thread alone([&] {
    const DeviceGate::Turn turn = gate.enter_alone(0);
    stage = gate.running(0) == 1 ? 1 : -1;
    until_waiting(gate, 1);
    if (turn.had_company()) stage = -1;
  });
  until_waiting(gate, 1);
  std::thread late([&] {
    const DeviceGate::Turn turn = gate.enter();
    stage = stage == 1 ? 2 : -2;
  });
  until_waiting(gate, 2);
  first.reset();
  CHECK(stage == 0);
  CHECK(gate.waiting() == 2);
  second.reset();
  alone.join();
  late.join();
  CHECK(stage == 2);
}

TEST_CASE("other devices go on while one is wanted alone", "[cuda][gate]") {
  DeviceGate gate(2, 2);
  std::optional<DeviceGate::Turn> held(gate.enter());
  std::thread alone([&] { const DeviceGate::Turn turn = gate.enter_alone(0); });
  until_waiting(gate, 1);
  const DeviceGate::Turn a = gate.enter(), b = gate.enter();
  CHECK(a.place() == 1);
  CHECK(b.place() == 1);
  held.reset();
  alone.join();
}

TEST_CASE("a call knows whether it had company", "[cuda][gate]") {
  DeviceGate gate(1, 3);
  std::optional<DeviceGate::Turn> first(gate.enter());
  CHECK_FALSE(first->had_company());
  {
    const DeviceGate::Turn second = gate.enter();
    CHECK(second.had_company());
  }
  CHECK(first->had_company());  // the second may have held what the first could not get
  first.reset();
  CHECK_FALSE(gate.enter().had_company());
}

TEST_CASE("out of device memory in company is tried once more, alone", "[cuda][gate]") {
  DeviceGate gate(1, 2);
  std::optional<DeviceGate::Turn> other(gate.enter());
  int calls = 0;
  std::thread release([&] {
    until_waiting(gate, 1);
    other.reset();
  });
  const auto got = cuda::in_turn(gate, [&](std::size_t place) {
    if (++calls == 1) throw cuda::OutOfDeviceMemory("full");
    CHECK(gate.running(place) == 1);
    return 7;
  });
  release.join();
  CHECK(got == 7);
  CHECK(calls == 2);
}

TEST_CASE("out of device memory alone, and any other error, goes out", "[cuda][gate]") {
  DeviceGate gate(1, 2);
  int calls = 0;
  const auto full = [&](std::size_t) -> int {
    ++calls;
    throw cuda::OutOfDeviceMemory("full");
  };
  CHECK_THROWS_AS(cuda::in_turn(gate, full), cuda::OutOfDeviceMemory);
  CHECK(calls == 1);
  {
    std::optional<DeviceGate::Turn> other(gate.enter());
    std::thread release([&] {
      until_waiting(gate, 1);
      other.reset();
    });
    CHECK_THROWS_AS(cuda::in_turn(gate, full), cuda::OutOfDeviceMemory);
    release.join();
    CHECK(calls == 3);

    other.emplace(gate.enter());
    CHECK_THROWS_AS(cuda::in_turn(gate, [](std::size_t) -> int { throw std::runtime_error("no"); }),
                    std::runtime_error);
  }
  CHECK(gate.running(0) == 0);
  CHECK(gate.waiting() == 0);
}

TEST_CASE("calls of nested loops never wait for each other", "[cuda][gate]") {
  DeviceGate gate(2, 2);
  Workers workers(8);
  std::atomic<int> done{0}, most{0}, failures{0};
  workers.parallel_for(24, [&](std::ptrdiff_t outer) {
    workers.parallel_for(3, [&](std::ptrdiff_t inner) {
      bool first = (outer + inner) % 4 == 0;
      try {
        cuda::in_turn(gate, [&](std::size_t place) {
          int seen = most;
          while (seen < gate.running(place) && !most.compare_exchange_weak(seen, gate.running(place))) {
          }
          // As a twin prepares its numbers: a loop of a call's own.
          workers.parallel_for(4, [](std::ptrdiff_t) {});
          if (std::exchange(first, false)) throw cuda::OutOfDeviceMemory("full");
          return 0;
        });
      } catch (const cuda::OutOfDeviceMemory&) {
        ++failures;  // it happened to be alone
      }
      ++done;
    });
  });
  CHECK(done == 72);
  CHECK(failures <= 18);
  CHECK(most <= 2);
  CHECK(gate.running(0) + gate.running(1) == 0);
}
