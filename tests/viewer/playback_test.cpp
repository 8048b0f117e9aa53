#include "viewer/model/playback.hpp"

#include "tests/support/catch.hpp"

#include <cmath>
#include <limits>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using std::chrono::milliseconds;

TEST_CASE("steps follow each other in time and stop at the last", "[viewer][playback]") {
  Playback playback;
  Playback::Clock::time_point now{};
  CHECK(playback.advance(3, 10, now + milliseconds(900)) == 3);
  CHECK_FALSE(playback.due());
  playback.play(now);
  CHECK(playback.due() == now + Playback::kStep);
  CHECK(playback.advance(3, 10, now += milliseconds(100)) == 3);
  CHECK(playback.advance(3, 10, now += milliseconds(30)) == 4);
  // Late frames lose no step, and what is over of one counts for the next.
  CHECK(playback.advance(4, 10, now += milliseconds(370)) == 7);
  CHECK(playback.advance(7, 10, now) == 7);
  // Not looked at for long.
  CHECK(playback.advance(7, 10, now += std::chrono::seconds(60)) == 8);
  CHECK(playback.playing());
  CHECK(playback.advance(8, 10, now += milliseconds(500)) == 9);
  CHECK_FALSE(playback.playing());
  playback.play(now);
  playback.pause();
  CHECK(playback.advance(0, 10, now + milliseconds(500)) == 0);
}

TEST_CASE("a spike stands out from what is around it, whatever the trend", "[viewer][playback]") {
  std::vector<double> error;
  for (int s = 0; s < 200; ++s) error.push_back(1e-6 * std::exp(0.05 * s) * (1 + 0.3 * std::sin(2.0 * s)));
  CHECK_FALSE(next_spike(error, -1, true));
  error[50] *= 6;
  error[120] *= 6;
  error[199] *= 6;
  CHECK(next_spike(error, -1, true) == 50);
  CHECK(next_spike(error, 50, true) == 120);
  CHECK(next_spike(error, 120, true) == 199);
  CHECK_FALSE(next_spike(error, 199, true));
  CHECK(next_spike(error, 199, false) == 120);
  CHECK(next_spike(error, 51, false) == 50);
  CHECK_FALSE(next_spike(error, 50, false));
}

TEST_CASE("spikes of unkind errors", "[viewer][playback]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK_FALSE(next_spike({}, 0, true));
  CHECK_FALSE(next_spike(std::vector{1.0}, -1, true));
  CHECK_FALSE(next_spike(std::vector{nan, nan, nan}, -1, true));
  CHECK_FALSE(next_spike(std::vector{0.0, 0.0, 0.0}, -1, true));
  CHECK(next_spike(std::vector{nan, 1.0, nan, 9.0, nan}, -1, true) == 3);
  CHECK(next_spike(std::vector{0.0, 0.0, 1e-300, 0.0}, 0, true) == 2);
  CHECK_FALSE(next_spike(std::vector{1.0, 9.0, 9.0, 1.0}, -1, true));  // a plateau has no one top
}
