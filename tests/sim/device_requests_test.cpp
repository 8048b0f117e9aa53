// What a head group costs in launches and copies, whatever the device.

#include "sim/cuda/runtime_emulated.hpp"
#include "sim/tokens/cuda/token_readings_cuda.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cuda_devices.hpp"
#include "tests/support/group_in_16_bits.hpp"
#include "tests/support/random_group.hpp"

#include <span>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

constexpr Index kScoredTokens = cuda::scored_tokens(cuda::ScoreBlock::wide);

/// What a call takes of the device that has matrix units for TF32.
template <class Call>
cuda::DeviceRequests requests_of(Call call) {
  cuda::use_device(1);
  const cuda::DeviceRequests before = cuda::emulated_requests();
  call();
  return cuda::emulated_requests() - before;
}

}  // namespace

TEST_CASE("a few rows of a group take few launches, their own queries and one download", "[emulation]") {
  const Index l = 640, w = 32, G = 4, d = 128;
  const GroupIn16Bits in(to_float(random_group({.l = l, .T = l + 1, .G = G, .d = d, .d_v = d})),
                         cuda::NumberType::f16);
  const Index tables = 4 * (2 * w + 2 * (l / kScoredTokens));
  const ColumnRequest window{{l - w, l}, ColumnSet::window};
  Workers workers(1);
  const auto spent = requests_of([&] {
    cuda::DeviceReadings(in.group(), in.stored(), Products::f32, workers)
        .column_totals(std::span(&window, 1));
  });
  CHECK(spent.launches == 7);
  CHECK(spent.fills == 0);
  CHECK(spent.uploads == 3 + G);  // K, V, what rows see, the rows of each head
  CHECK(spent.uploaded == 2 * d * (2 * (l + 1) + G * w) + tables);
  CHECK(spent.downloads == 1);
  CHECK(spent.downloaded == G * (7 * l * Index{sizeof(double)} + w * Index{sizeof(LargestScores)}));
}

TEST_CASE("weights alone bring no values and take two sums back", "[emulation]") {
  const Index l = 640, w = 32, G = 4, d = 128;
  const GroupIn16Bits in(to_float(random_group({.l = l, .T = l + 1, .G = G, .d = d, .d_v = d})),
                         cuda::NumberType::f16);
  const ColumnRequest weights{{l - w, l}, ColumnSet::weights};
  Workers workers(1);
  const auto spent = requests_of([&] {
    cuda::DeviceReadings(in.group(), in.stored(), Products::f32, workers)
        .column_totals(std::span(&weights, 1));
  });
  CHECK(spent.launches == 5);
  CHECK(spent.fills == 0);
  CHECK(spent.uploads == 2 + G);  // K, what rows see, the rows of each head
  CHECK(spent.uploaded == 2 * d * (l + 1 + G * w) + 4 * (2 * w + 2 * (l / kScoredTokens)));
  CHECK(spent.downloads == 1);
  CHECK(spent.downloaded == G * (2 * l * Index{sizeof(double)} + w * Index{sizeof(LargestScores)}));
}

TEST_CASE("a second set of rows brings its queries alone", "[emulation]") {
  const Index l = 640, w = 32, G = 4, d = 128;
  const GroupIn16Bits in(to_float(random_group({.l = l, .T = l + 10, .G = G, .d = d, .d_v = d})),
                         cuda::NumberType::f16);
  const ColumnRequest requests[] = {{{l - w, l}, ColumnSet::window}, {{l, l + 10}, ColumnSet::future}};
  Workers workers(1);
  const auto of = [&](std::size_t n) {
    return requests_of([&] {
      cuda::DeviceReadings(in.group(), in.stored(), Products::f32, workers)
          .column_totals(std::span(requests).first(n));
    });
  };
  const cuda::DeviceRequests more = of(2) - of(1);
  CHECK(more.launches == 4);  // rows, pass one, the end of pass one, pass two
  CHECK(more.uploads == 1 + G);
  CHECK(more.uploaded == 2 * d * G * 10 + 4 * (2 * 10 + 2 * (l / kScoredTokens)));
  CHECK(more.downloads == 1);
}

TEST_CASE("numbers in 32 bits are asked whether one half is enough, twice", "[emulation]") {
  const Index l = 640, w = 32, G = 4, d = 128;
  const HeadGroup<float> group =
      to_float(random_group({.l = l, .T = l + 1, .G = G, .d = d, .d_v = d, .sink_logit = 1.0}));
  const cuda::StoredNumbers numbers = cuda::stored_numbers(group);
  const ColumnRequest window{{l - w, l}, ColumnSet::window};
  Workers workers(1);
  const auto spent = requests_of([&] {
    cuda::DeviceReadings(group, numbers, Products::f32, workers).column_totals(std::span(&window, 1));
  });
  CHECK(spent.launches == 8);
  CHECK(spent.fills == 2);
  CHECK(spent.uploads == 4 + G);  // the sink logits too
  CHECK(spent.downloads == 3);
  const auto with_tensor = requests_of([&] {
    cuda::DeviceReadings(group, numbers, Products::tensor, workers).column_totals(std::span(&window, 1));
  });
  CHECK(with_tensor.launches == 7);
  CHECK(with_tensor.fills == 0);
  CHECK(with_tensor.downloads == 1);
}

TEST_CASE("all that a device has metrics of brings keys and values once", "[emulation]") {
  const Index l = 640, w = 32, G = 4, d = 128, T = l + 10;
  const GroupIn16Bits in(
      to_float(random_group(
          {.l = l, .T = T, .G = G, .d = d, .d_v = d, .rope = rope_of(Rope::Style::half, d), .repeat = 0})),
      cuda::NumberType::f16);
  MetricSet metrics = MetricSet::standard();
  for (const TokenMetric m : kTokenMetrics.all())
    if (kTokenMetrics[m].of_gradients || kTokenMetrics[m].rows == MetricRows::repeat) metrics.erase(m);
  Workers workers(1);
  const auto of = [&](const MetricSet& which) {
    return requests_of([&] {
      cuda::read_metrics_of(in.group(), in.stored(), {.window = w, .metrics = which}, Products::f32, workers);
    });
  };
  const auto spent = of(metrics);
  const Index keys_and_values = 2 * d * 2 * T, queries = 2 * d * G * (l - 4), rows = 2 * d * G * (w + 1 + 10),
              caote = 8 * (G + 1) * (l + d), tables = 4 * 2 * (w + 1 + 10) + 3 * 4 * 2 * (l / kScoredTokens),
              forms = 4 * G * d * (d + 1), angles = 8 * d / 2;
  CHECK(spent.uploaded == keys_and_values + queries + rows + caote + tables + forms + angles);
  CHECK(spent.fills == 0);
  using M = TokenMetric;
  CHECK(of({M::knorm, M::keydiff}).uploaded == 2 * d * T);
  CHECK(of({M::knorm}).launches == 1);
  CHECK(of({M::keydiff}).launches == 4);
  CHECK((of({M::attn, M::caote, M::fastcaote}) - of({M::attn})).launches == 4);  // the centre too
  CHECK(of({M::attn}).uploaded == 2 * d * (T + G * w) + 4 * 2 * (w + l / kScoredTokens));
  CHECK(of({M::expected_attention}).launches == 3 + 4 * G);
}
