// What a head group costs in launches and copies, whatever the device.

#include "sim/cuda/runtime_emulated.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cuda_devices.hpp"
#include "tests/support/group_in_16_bits.hpp"
#include "tests/support/random_group.hpp"

#include <span>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

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
  const Index tables = 4 * (2 * w + 2 * (l / cuda::kScoredTokens));
  const ColumnRequest window{{l - w, l}, ColumnSet::window};
  const auto spent = requests_of(
      [&] { cuda::column_totals_of(in.group(), in.stored(), Products::f32, std::span(&window, 1)); });
  CHECK(spent.launches == 7);
  CHECK(spent.fills == 0);
  CHECK(spent.uploads == 3 + G);  // K, V, what rows see, the rows of each head
  CHECK(spent.uploaded == 2 * d * (2 * (l + 1) + G * w) + tables);
  CHECK(spent.downloads == 1);
  CHECK(spent.downloaded == G * (7 * l * Index{sizeof(double)} + w * Index{sizeof(LargestScores)}));
}

TEST_CASE("a second set of rows brings its queries alone", "[emulation]") {
  const Index l = 640, w = 32, G = 4, d = 128;
  const GroupIn16Bits in(to_float(random_group({.l = l, .T = l + 10, .G = G, .d = d, .d_v = d})),
                         cuda::NumberType::f16);
  const ColumnRequest requests[] = {{{l - w, l}, ColumnSet::window}, {{l, l + 10}, ColumnSet::future}};
  const auto of = [&](std::size_t n) {
    return requests_of([&] {
      cuda::column_totals_of(in.group(), in.stored(), Products::f32, std::span(requests).first(n));
    });
  };
  const cuda::DeviceRequests more = of(2) - of(1);
  CHECK(more.launches == 4);  // rows, pass one, the end of pass one, pass two
  CHECK(more.uploads == 1 + G);
  CHECK(more.uploaded == 2 * d * G * 10 + 4 * (2 * 10 + 2 * (l / cuda::kScoredTokens)));
  CHECK(more.downloads == 1);
}

TEST_CASE("numbers in 32 bits are asked whether one half is enough, twice", "[emulation]") {
  const Index l = 640, w = 32, G = 4, d = 128;
  const HeadGroup<float> group =
      to_float(random_group({.l = l, .T = l + 1, .G = G, .d = d, .d_v = d, .sink_logit = 1.0}));
  const ColumnRequest window{{l - w, l}, ColumnSet::window};
  const auto spent = requests_of([&] {
    cuda::column_totals_of(group, cuda::stored_numbers(group), Products::f32, std::span(&window, 1));
  });
  CHECK(spent.launches == 8);
  CHECK(spent.fills == 2);
  CHECK(spent.uploads == 4 + G);  // the sink logits too
  CHECK(spent.downloads == 3);
  const auto with_tensor = requests_of([&] {
    cuda::column_totals_of(group, cuda::stored_numbers(group), Products::tensor, std::span(&window, 1));
  });
  CHECK(with_tensor.launches == 7);
  CHECK(with_tensor.fills == 0);
  CHECK(with_tensor.downloads == 1);
}
