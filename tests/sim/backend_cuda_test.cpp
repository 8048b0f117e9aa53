#include "data/dtype.hpp"
#include "data/error.hpp"
#include "sim/cuda/runtime.hpp"
#include "sim/eviction/decode/decode.hpp"
#include "tests/sim/backend_calls.hpp"
#include "tests/sim/decode_cases.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cuda_devices.hpp"
#include "tests/support/no_device_memory.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

using namespace kvreplay;
using namespace kvreplay::test;

TEST_CASE("a CUDA backend computes on the most capable device", "[cuda][backend]") {
  const std::vector<cuda::DeviceInfo> devices = all_devices();
  const cuda::DeviceInfo best =
      *std::max_element(devices.begin(), devices.end(),
                        [](const auto& a, const auto& b) { return a.capability < b.capability; });
  const auto cuda = cuda_backend(false);
  CHECK(cuda->name() == "cuda");
  CHECK(cpu_backend().name() == "cpu");
  for (const Dispatched& what : dispatched()) {
    INFO(what.name);
    const Matrix<double> got = what.single(*cuda);
    cuda::use_device(best.index);
    CHECK(same_bytes(got, what.twin()));
    CHECK(mismatch(what.name, what.single(cpu_backend()), got, kBackends) == "");
  }
  CHECK(cuda->fell_back() == 0);
}

TEST_CASE("stored numbers take the place of a group's own on a device", "[cuda][backend]") {
  HeadGroup<float> rounded = group();
  StoredGroup stored;
  const auto store = [](HeadMatrix<float>& m) {
    auto bytes = std::make_unique<std::byte[]>(static_cast<std::size_t>(2 * m.size()));
    for (Index i = 0; i < m.size(); ++i) {
      const std::uint16_t bits = float_to_half(m.data()[i]);
      std::memcpy(bytes.get() + 2 * i, &bits, 2);
      m.data()[i] = half_to_float(bits);
    }
    return bytes;
  };
  stored.k = store(rounded.k);
  stored.v = store(rounded.v);
  for (HeadMatrix<float>& q : rounded.q) stored.q.push_back(store(q));

  const auto metrics = [&](const Backend& backend, const StoredGroup* from) {
    return numbers(backend.token_metrics(rounded, all_metrics(), workers(), from));
  };
  const auto cuda = cuda_backend(false);
  const Matrix<double> want = metrics(*cuda, nullptr), on_cpu = metrics(cpu_backend(), nullptr);
  CHECK(same_bytes(metrics(*cuda, &stored), want));
  CHECK(same_bytes(metrics(cpu_backend(), &stored), on_cpu));
  // They are what is read.
  std::fill_n(stored.k.get(), static_cast<std::size_t>(2 * rounded.k.size()), std::byte{0});
  CHECK_FALSE(same_bytes(metrics(*cuda, &stored), want));
  CHECK(same_bytes(metrics(cpu_backend(), &stored), on_cpu));
}

TEST_CASE("a backend without device memory says so, or the CPU takes over", "[cuda][backend][hog]") {
  const auto strict = cuda_backend(false), lenient = cuda_backend(true);
  const NoDeviceMemory none;
  std::vector<std::pair<std::string, Numbers>> all = callers();
  for (const Dispatched& what : dispatched()) all.emplace_back(what.name, what.single);
  for (const auto& [name, numbers_of] : all) {
    INFO(name);
    CHECK_THROWS_AS(numbers_of(*strict), cuda::OutOfDeviceMemory);
    const Index before = lenient->fell_back();
    CHECK(same_bytes(numbers_of(*lenient), numbers_of(cpu_backend())));
    CHECK(lenient->fell_back() > before);
  }
  CHECK(strict->fell_back() == 0);
}

TEST_CASE("what asks a backend comes to the same figures on a device", "[cuda][backend]") {
  const auto cuda = cuda_backend(false);
  for (const auto& [name, numbers_of] : callers()) {
    INFO(name);
    CHECK(mismatch(name, numbers_of(cpu_backend()), numbers_of(*cuda), kBackends) == "");
  }
}

TEST_CASE("float64 runs on the CPU whatever the backend", "[cuda][backend][hog]") {
  const auto cuda = cuda_backend(false);
  const NoDeviceMemory none;
  for (const Dispatched& what : dispatched()) {
    INFO(what.name);
    CHECK(same_bytes(what.exact(*cuda), what.exact(cpu_backend())));
  }
}

TEST_CASE("errors that are none of memory are not for the CPU to mend", "[cuda][backend]") {
  const auto lenient = cuda_backend(true);
  HeadGroup<float> large = group();
  large.v *= 1e38F;
  CHECK_THROWS_AS(lenient->output_changes(large, kRows, caches_of<float>(sets()), false, workers()),
                  InputError);
  CHECK(lenient->fell_back() == 0);
}

TEST_CASE("caches that rows read in part are the CPU's, and those beside them stay on the device",
          "[cuda][backend]") {
  const auto cuda = cuda_backend(false);
  const HeadGroup<float> of = group();
  const std::vector<Cache<float>> evicted = caches_of<float>(sets());
  REQUIRE(evicted.size() > 1);
  Cache<float> read{KeptSet(static_cast<std::size_t>(of.l), 1)};
  read.pages = {1, of.first_query(), {}};
  for (Index row = 0; row < of.T_q(); ++row)
    for (std::vector<std::uint8_t>& tokens = read.pages.read.emplace_back(); std::ssize(tokens) < of.l;)
      tokens.push_back((std::ssize(tokens) + row) % 3 == 0 ? 1 : 0);
  std::vector<Cache<float>> caches = evicted;
  caches.insert(caches.begin() + 1, read);
  const auto changes = [&](const Backend& backend, const std::vector<Cache<float>>& of_these) {
    return backend.output_changes(of, kRows, of_these, true, workers());
  };
  const OutputChanges<float> all = changes(*cuda, caches), device = changes(*cuda, evicted),
                             host = changes(cpu_backend(), {read});
  CHECK(all.full == device.full);
  CHECK(all.full_sq == device.full_sq);
  REQUIRE(all.change.size() == caches.size());
  for (std::size_t c = 0; c < caches.size(); ++c) {
    const OutputChanges<float>& from = c == 1 ? host : device;
    const std::size_t at = c == 0 ? 0 : c - 1;
    CHECK(all.change_sq[c] == from.change_sq[c == 1 ? 0 : at]);
    CHECK(all.change[c] == from.change[c == 1 ? 0 : at]);
  }
  CHECK(changes(*cuda, {read}).change_sq == host.change_sq);
}

TEST_CASE("policies with state are the CPU's, and runs beside them stay on the device", "[cuda][backend]") {
  const auto cuda = cuda_backend(false);
  const HeadGroup<float> of = to_float(random_group({.l = 20, .T = 44, .G = 2, .d = 8, .seed = 51}));
  const EvictionRule rule = rule_named(EvictionBase::snapkv, {}, Semantics::paper, of.l, 9, pins(1, 2));
  const EvictionRule random = rule_named(EvictionBase::random, {}, Semantics::paper, of.l, 9);
  const KeptSet start = spread(of.l, 9);
  const Matrix<double> scores = decode_start_scores(of, rule, {}, workers());
  const std::vector<Matrix<float>> full = decode_full_outputs(of, workers());
  const Matrix<double> no_scores;
  const DecodeRequest every{&rule, &start, 9, {}, &scores}, drawn{&random, &start, 9, {}, &no_scores},
      at_intervals{&rule, &start, 9, {.interval = 5}, &scores};
  const auto replays = [&](const Backend& backend, std::vector<DecodeRequest> runs) {
    return backend.decode_replays(of, runs, full, workers());
  };
  const auto all = replays(*cuda, {every, at_intervals, every, drawn}), device = replays(*cuda, {every}),
             host = replays(cpu_backend(), {at_intervals, drawn});
  REQUIRE(all.size() == 4);
  for (std::size_t r = 0; r < 4; ++r) {
    const DecodeReplay<float>& want = r % 2 == 1 ? host[r / 2] : device.front();
    CHECK(all[r].left == want.left);
    CHECK(all[r].change_sq == want.change_sq);
  }
  CHECK(all[0].left != all[1].left);
}
