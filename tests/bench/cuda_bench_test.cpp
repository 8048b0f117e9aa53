#include "tests/bench/cuda_report.hpp"
#include "tests/bench/cuda_timing.hpp"
#include "tests/support/catch.hpp"

using namespace kvreplay;
using namespace kvreplay::bench;

TEST_CASE("a pass's work counts every visible pair once", "[cuda]") {
  const PassShape shape{7, 3, 2, 16};
  double pairs = 0;
  for (Index g = 0; g < shape.G; ++g)
    for (Index row = shape.l - shape.w; row < shape.l; ++row)
      for (Index token = 0; token < shape.l; ++token) pairs += token <= row ? 1 : 0;
  CHECK(shape.visible() == pairs);
  CHECK(shape.both(4).flops == 8 * pairs * 16);
  CHECK(shape.pass_one(4).flops + shape.pass_two(4).flops == shape.both(4).flops);
  CHECK(shape.input_bytes(2) == 2 * 16 * (7 + 7 + 2 * 3));
  CHECK(shape.both(4).bytes < shape.pass_two(4).bytes);
  const PassShape weights{7, 3, 2, 16, false};
  CHECK(weights.both(4).flops == 4 * pairs * 16);
  CHECK(weights.input_bytes(2) == 2 * 16 * (7 + 2 * 3));
}

TEST_CASE("a floor is the larger of what flops and bytes cost", "[cuda]") {
  DeviceFloor floor;
  floor.tiles = {900, 450, 200};
  floor.read_bytes = 10;
  CHECK(floor.flops(Quality::half) == 900);
  CHECK(floor.flops(Quality::float32) == 300);
  CHECK(floor.seconds(Quality::float32, 600, 10) == 2);
  CHECK(floor.seconds(Quality::float32, 600, 100) == 10);
  floor.tiles.fma = 400;
  CHECK(floor.flops(Quality::float32) == 400);
  floor.tiles = {300, 900, 200};
  CHECK(floor.flops(Quality::float32) == 300);
}

TEST_CASE("a median is one of the numbers, and figures are short", "[cuda]") {
  CHECK(median({3, 1, 2}) == 2);
  CHECK(median({5}) == 5);
  CHECK(readable(12345.6) == "12346");
  CHECK(readable(12.34) == "12.3");
  CHECK(readable(0.5) == "0.500");
  CHECK(readable(0.00123) == "0.00123");
}
