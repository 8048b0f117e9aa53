#include "sim/backend/backend_cuda.hpp"

#include "data/dtype.hpp"
#include "data/error.hpp"
#include "sim/backend.hpp"
#include "sim/cache/cache_outputs.hpp"
#include "sim/channels/channel_basis.hpp"
#include "sim/channels/channel_interaction.hpp"
#include "sim/channels/output_interaction.hpp"
#include "sim/cuda/runtime.hpp"
#include "sim/cuda/runtime_emulated.hpp"
#include "sim/eviction/decode/decode.hpp"
#include "sim/eviction/exact/greedy.hpp"
#include "sim/eviction/prompt_eviction.hpp"
#include "sim/tokens/token_metrics.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/index_sets.hpp"
#include "tests/support/random_group.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

constexpr Index kLength = 70;
constexpr RowRange kRows{40, 78};

const HeadGroup<float>& group() {
  static const HeadGroup<float> group = to_float(random_group({.l = kLength, .T = 78, .G = 2}));
  return group;
}
const HeadGroup<double>& wide_group() {
  static const HeadGroup<double> wide = to_double(group());
  return wide;
}

Workers& workers() {
  static Workers workers(1);
  return workers;
}

const std::vector<KeptSet>& sets() {
  static const std::vector<KeptSet> sets{KeptSet(kLength, 1), [] {
                                           KeptSet odd(kLength, 0);
                                           for (std::size_t p = 1; p < odd.size(); p += 2) odd[p] = 1;
                                           return odd;
                                         }()};
  return sets;
}

/// All numbers of a result, in a row.
Matrix<double> numbers(const TokenMetrics& metrics) {
  Matrix<double> all = Matrix<double>::Zero(std::ssize(kTokenMetrics), kLength);
  for (const TokenMetric m : kTokenMetrics.all())
    if (metrics[m].size() > 0) all.row(static_cast<Index>(m)) = metrics[m].row(0);
  return all;
}
template <class T>
Matrix<double> numbers(const OutputChanges<T>& changes) {
  std::vector<double> all{changes.full_sq};
  all.insert(all.end(), changes.change_sq.begin(), changes.change_sq.end());
  for (const PanelRows<T>& change : changes.change)
    for (const std::vector<T>& head : change) all.insert(all.end(), head.begin(), head.end());
  return Eigen::Map<const Matrix<double>>(all.data(), 1, std::ssize(all));
}
Matrix<double> numbers(const KeptSet& kept) {
  Matrix<double> all(1, std::ssize(kept));
  for (std::size_t p = 0; p < kept.size(); ++p) all(0, static_cast<Index>(p)) = kept[p];
  return all;
}
Matrix<double> numbers(const ChannelBasis& basis) {
  Matrix<double> all(3 * basis.window.rows(), basis.window.cols());
  all << basis.window, basis.future, basis.scores.outputs;
  return all;
}

TokenOptions all_metrics() {
  TokenOptions options;
  options.metrics = available_metrics(wide_group());
  return options;
}

using Numbers = std::function<Matrix<double>(const Backend&)>;

/// What a backend computes, in float32, by the device's twin alone, and in float64.
struct Dispatched {
  std::string name;
  Numbers single;
  std::function<Matrix<double>()> twin;
  Numbers exact;
};

template <class T>
const HeadGroup<T>& group_of() {
  if constexpr (std::is_same_v<T, float>)
    return group();
  else
    return wide_group();
}

template <class T>
Matrix<double> gram_of(const Backend& backend) {
  return backend.gram_f64(group_of<T>().k, range(0, kLength, 3), workers());
}
template <class T>
Matrix<double> query_gram_of(const Backend& backend) {
  return backend.query_gram(group_of<T>(), kRows, workers());
}
template <class T>
Matrix<double> metrics_of(const Backend& backend) {
  return numbers(backend.token_metrics(group_of<T>(), all_metrics(), workers()));
}
template <class T>
Matrix<double> changes_of(const Backend& backend) {
  return numbers(backend.output_changes(group_of<T>(), kRows, caches_of<T>(sets()), true, workers()));
}
template <class T>
Matrix<double> interaction_of(const Backend& backend) {
  return backend.output_interaction(group_of<T>(), kRows, prompt_keys(kLength, 5), workers());
}

std::vector<Dispatched> dispatched() {
  return {
      {"token_metrics", metrics_of<float>,
       [] { return numbers(token_metrics_cuda(group(), all_metrics(), workers())); }, metrics_of<double>},
      {"output_changes", changes_of<float>,
       [] { return numbers(output_changes_cuda(group(), kRows, caches_of<float>(sets()), true, workers())); },
       changes_of<double>},
      {"gram_f64", gram_of<float>, [] { return gram_f64_cuda(group().k, range(0, kLength, 3)); },
       gram_of<double>},
      {"query_gram", query_gram_of<float>, [] { return query_gram_cuda(group(), kRows); },
       query_gram_of<double>},
      {"output_interaction", interaction_of<float>,
       [] { return output_interaction_cuda(group(), kRows, prompt_keys(kLength, 5), workers()); },
       interaction_of<double>},
  };
}

EvictionRule rule_named(EvictionBase base, Index budget) {
  Policy policy;
  policy.base = base;
  return rule_of(policy, Semantics::paper, {}, kLength, budget, false);
}

/// What asks a backend on its way to something else.
std::vector<std::pair<std::string, Numbers>> callers() {
  return {
      {"rule_scores",
       [](const Backend& backend) -> Matrix<double> {
         const EvictionRule rule = rule_named(EvictionBase::snapkv, 10);
         return rule_scores(group(), std::span(&rule, 1), {}, {workers(), backend})[0].transpose();
       }},
      {"evict_in_blocks",
       [](const Backend& backend) {
         return numbers(
             evict_in_blocks(group(), rule_named(EvictionBase::h2o, 12), 12, 16, {workers(), backend}));
       }},
      {"decode_start_scores",
       [](const Backend& backend) {
         return decode_start_scores(group(), rule_named(EvictionBase::h2o, 12), {}, {workers(), backend});
       }},
      {"channel_basis",
       [](const Backend& backend) {
         return numbers(channel_basis(group(), sets()[1], {Semantics::official, 5, 16, std::nullopt}, true,
                                      {workers(), backend}));
       }},
  };
}

/// Of float32 results that two backends came to; Gram matrices are far nearer.
constexpr Tolerance kBackends{1e-5, 1e-2, 1e-3, 1e-30};

}  // namespace

TEST_CASE("a CUDA backend computes on the most capable device", "[cuda][backend]") {
  const auto cuda = cuda_backend(false);
  CHECK(cuda->name() == "cuda");
  CHECK(cpu_backend().name() == "cpu");
  for (const Dispatched& what : dispatched()) {
    INFO(what.name);
    const Matrix<double> got = what.single(*cuda);
    cuda::use_device(1);
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

TEST_CASE("a backend without device memory says so, or the CPU takes over", "[cuda][backend]") {
  const auto strict = cuda_backend(false), lenient = cuda_backend(true);
  const cuda::EmulatedMemory memory(16);
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

TEST_CASE("float64 runs on the CPU whatever the backend", "[cuda][backend]") {
  const auto cuda = cuda_backend(false);
  const cuda::EmulatedMemory memory(16);
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

TEST_CASE("after a device's first failure everything is the CPU's, or the failure goes out",
          "[cuda][backend]") {
  using cuda::DeviceCall;
  std::vector<std::pair<std::string, Numbers>> all = callers();
  for (const Dispatched& what : dispatched()) all.emplace_back(what.name, what.single);
  for (const DeviceCall call :
       {DeviceCall::allocate, DeviceCall::copy, DeviceCall::launch, DeviceCall::synchronize})
    for (const auto& [name, numbers_of] : all) {
      INFO(name << ", call of kind " << static_cast<int>(call));
      const auto strict = cuda_backend(false), lenient = cuda_backend(true);
      const Matrix<double> on_cpu = numbers_of(cpu_backend());
      CHECK(lenient->failure() == "");
      {
        const cuda::EmulatedFailure failure(call);
        CHECK_THROWS_AS(numbers_of(*strict), cuda::DeviceError);
        CHECK(same_bytes(numbers_of(*lenient), on_cpu));
        CHECK(lenient->failure().find("CUDA: the emulated device fails at ") == 0);
      }
      // It is not asked again, though it would answer.
      const cuda::DeviceRequests before = cuda::emulated_requests();
      CHECK(same_bytes(numbers_of(*lenient), on_cpu));
      const cuda::DeviceRequests since = cuda::emulated_requests() - before;
      CHECK(since.launches + since.uploads + since.fills == 0);
      CHECK(lenient->fell_back() == 0);
    }
}

TEST_CASE("a device that fails in the middle of a call leaves whole results", "[cuda][backend]") {
  const Matrix<double> on_cpu = metrics_of<float>(cpu_backend());
  const cuda::DeviceRequests before = cuda::emulated_requests();
  metrics_of<float>(*cuda_backend(false));
  const auto launches = static_cast<int>((cuda::emulated_requests() - before).launches);
  REQUIRE(launches > 3);
  for (const int nth : {2, launches / 2, launches}) {
    INFO("launch " << nth << " of " << launches);
    const auto lenient = cuda_backend(true);
    const cuda::EmulatedFailure failure(cuda::DeviceCall::launch, nth);
    CHECK(same_bytes(metrics_of<float>(*lenient), on_cpu));
    CHECK_FALSE(lenient->failure().empty());
  }
  const auto lenient = cuda_backend(true);
  const cuda::EmulatedFailure failure(cuda::DeviceCall::launch, launches + 1);
  CHECK(mismatch("on the device", on_cpu, metrics_of<float>(*lenient), kBackends) == "");
  CHECK(lenient->failure().empty());
  CHECK(same_bytes(metrics_of<float>(*lenient), on_cpu));
}

TEST_CASE("a backend takes the most capable devices that this build has code for", "[cuda][backend]") {
  const auto numbers_taken = [](const Backend& backend) {
    std::vector<int> found;
    for (const ComputeDevice& device : backend.devices()) found.push_back(device.number);
    return found;
  };
  CHECK(cpu_backend().devices().empty());
  const ComputeDevice best = cuda_backend(false)->devices().at(0);
  CHECK(best.number == 1);
  CHECK(best.name == "the processor, as a GPU");
  CHECK(best.capability == 90);
  CHECK(best.code == 90);
  CHECK_FALSE(best.from_ptx);
  CHECK(best.driver == 130);
  CHECK(best.runtime == 124);
  CHECK(numbers_taken(*cuda_backend(false, Products::f32, {.number = 0})) == std::vector{0});
  CHECK(numbers_taken(*cuda_backend(false, Products::f32, {.share = 3})) == std::vector{1});
  CHECK_THROWS_WITH(cuda_backend(true, Products::f32, {.number = 2}),
                    "GPU 2 is none of those that there are");
  CHECK(why_no_cuda() == "");
  {
    const cuda::EmulatedCode ptx(1, 80);
    CHECK(cuda_backend(false)->devices().at(0).from_ptx);
  }

  const cuda::EmulatedCode none(1, 0);
  CHECK(numbers_taken(*cuda_backend(false)) == std::vector{0});
  const Matrix<double> got = metrics_of<float>(*cuda_backend(false));
  cuda::use_device(0);
  CHECK(same_bytes(got, dispatched()[0].twin()));
  const std::vector<ComputeDevice> all = cuda_devices();
  REQUIRE(all.size() == 2);
  CHECK(all[0].why_not == "");
  CHECK(all[1].code == 0);
  CHECK(all[1].why_not == "GPU 1 has no code here");
  CHECK_THROWS_WITH(cuda_backend(true, Products::f32, {.number = 1}), "GPU 1 has no code here");
}

TEST_CASE("without a device that works there is no CUDA backend", "[cuda][backend]") {
  for (const auto call : {cuda::DeviceCall::find, cuda::DeviceCall::code}) {
    const cuda::EmulatedFailure failure(call);
    CHECK_THROWS_AS(cuda_backend(true), cuda::DeviceError);
    CHECK(why_no_cuda().find("CUDA: the emulated device fails at ") == 0);
  }
}
