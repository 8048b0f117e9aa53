#include "tests/sim/planted_faults.hpp"

#include "tests/support/catch.hpp"
#include "tests/support/cuda_devices.hpp"

// For compute-sanitizer alone, which runs each by its name: hidden, for some end in an error of the device.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

void plant(void (*fault)(float*, const cuda::Stream&), bool written) {
  on_a_device([&] {
    const cuda::Stream stream;
    const cuda::Buffer<float> numbers(32);
    if (written) fill_zero(numbers, stream);
    fault(numbers.data(), stream);
    stream.synchronize();
  });
}

}  // namespace

TEST_CASE("planted for memcheck", "[.planted]") { plant(read_beyond, true); }
TEST_CASE("planted for racecheck", "[.planted]") { plant(read_without_barrier, true); }
TEST_CASE("planted for initcheck", "[.planted]") { plant(read_unwritten, false); }
TEST_CASE("planted for synccheck", "[.planted]") { plant(leave_some_at_barrier, true); }
