#include "data/error.hpp"
#include "sim/channels/arrangement.hpp"
#include "sim/channels/selection.hpp"
#include "tests/support/catch.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

using namespace kvreplay;

namespace {

using Channels = std::vector<Index>;
using Style = Rope::Style;

Rope rope_of(Style style, std::vector<double> inv_freq) {
  Rope rope;
  rope.style = style;
  rope.rotary_dim = 2 * std::ssize(inv_freq);
  rope.inv_freq = std::move(inv_freq);
  return rope;
}

/// X^T X of random rows.
Matrix<double> random_interaction(Index d, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  Matrix<double> x(2 * d + 1, d);
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = normal(random);
  return x.transpose() * x;
}

bool is_permutation_of_all(const Channels& order, Index d) {
  return std::ssize(order) == d && std::ssize(std::set<Index>(order.begin(), order.end())) == d &&
         *std::min_element(order.begin(), order.end()) == 0 &&
         *std::max_element(order.begin(), order.end()) == d - 1;
}

}  // namespace

TEST_CASE("every arrangement of channels is a permutation, the same each time", "[channel_arrangement]") {
  const Index d = GENERATE(1, 2, 3, 5, 8, 33, 64);
  const Style style = GENERATE(Style::half, Style::interleaved);
  const Rope rope = rope_of(style, std::vector<double>(static_cast<std::size_t>(d / 4), 0.25));
  const Matrix<double> H = random_interaction(d, 7);
  for (const ChannelArrangement one : kChannelArrangements.all()) {
    INFO(name_of(one) << " of " << d);
    const Channels order = arranged_channels(one, H, rope_partners(rope, d), rope_frequencies(rope, d));
    CHECK(is_permutation_of_all(order, d));
    CHECK(arranged_channels(one, H, rope_partners(rope, d), rope_frequencies(rope, d)) == order);
  }
}

TEST_CASE("rotation partners stand side by side, those that are left whole last", "[channel_arrangement]") {
  const auto pairs = [](const Rope& rope, Index d) {
    return arranged_channels(ChannelArrangement::pairs, Matrix<double>::Identity(d, d),
                             rope_partners(rope, d), {});
  };
  CHECK(pairs(rope_of(Style::half, {1, 0.1, 0.01}), 6) == Channels{0, 3, 1, 4, 2, 5});
  CHECK(pairs(rope_of(Style::interleaved, {1, 0.1, 0.01}), 6) == Channels{0, 1, 2, 3, 4, 5});
  CHECK(pairs(rope_of(Style::half, {1, 0.1}), 7) == Channels{0, 2, 1, 3, 4, 5, 6});
}

TEST_CASE("channels by frequency: the slowest first, equal ones by their number", "[channel_arrangement]") {
  const auto by_frequency = [](const Rope& rope, Index d) {
    return arranged_channels(ChannelArrangement::frequency, Matrix<double>::Identity(d, d),
                             rope_partners(rope, d), rope_frequencies(rope, d));
  };
  const Rope half = rope_of(Style::half, {1, 0.01, 0.1});
  CHECK(rope_frequencies(half, 7) == std::vector<double>{1, 0.01, 0.1, 1, 0.01, 0.1, 0});
  CHECK(by_frequency(half, 7) == Channels{6, 1, 4, 2, 5, 0, 3});
  CHECK(by_frequency(rope_of(Style::interleaved, {1, 0.01, 0.1}), 6) == Channels{2, 3, 4, 5, 0, 1});
  // A layer that is not rotated.
  CHECK(by_frequency(rope_of(Style::half, {0, 0}), 4) == Channels{0, 1, 2, 3});
}

TEST_CASE("channels by energy: the largest first, numbers before what is none", "[channel_arrangement]") {
  Matrix<double> H = Matrix<double>::Zero(5, 5);
  H.diagonal() << 2, 9, 2, std::numeric_limits<double>::quiet_NaN(), 0;
  CHECK(arranged_channels(ChannelArrangement::energy, H, {}, {}) == Channels{1, 0, 2, 4, 3});
}

TEST_CASE("clusters: blocks that interact are found again, whatever their channels' scale",
          "[channel_arrangement]") {
  // Channel c is of block c % 3; within a block they are alike, and nearly not between blocks.
  const Index d = 21;
  Matrix<double> H(d, d);
  for (Index c = 0; c < d; ++c)
    for (Index e = 0; e < d; ++e) {
      const double scale =
          std::ldexp(1.0, static_cast<int>(c % 7)) * std::ldexp(1.0, static_cast<int>(e % 7));
      const double sign = (c + e) % 2 == 0 ? 1 : -1;
      H(c, e) = scale * (c == e ? 1 : c % 3 == e % 3 ? 0.6 * sign : 0.05);
    }
  const Channels order = arranged_channels(ChannelArrangement::clusters, H, {}, {});
  REQUIRE(is_permutation_of_all(order, d));
  Index changes = 0;
  for (std::size_t i = 1; i < order.size(); ++i) changes += order[i] % 3 != order[i - 1] % 3 ? 1 : 0;
  CHECK(changes == 2);
}

TEST_CASE("clusters: the most alike ends meet, and a channel without weight spoils nothing",
          "[channel_arrangement]") {
  // A chain 0 - 2 - 4 - 1 - 3, each alike to the next.
  const Channels chain{0, 2, 4, 1, 3};
  Matrix<double> H = Matrix<double>::Identity(6, 6);
  for (std::size_t i = 1; i < chain.size(); ++i)
    H(chain[i - 1], chain[i]) = H(chain[i], chain[i - 1]) = -0.5 - 0.01 * static_cast<double>(i);
  H(5, 5) = 0;
  const Channels order = arranged_channels(ChannelArrangement::clusters, H, {}, {});
  REQUIRE(is_permutation_of_all(order, 6));
  Channels without(order);
  without.erase(std::find(without.begin(), without.end(), 5));
  CHECK((without == chain || without == Channels(chain.rbegin(), chain.rend())));
}

TEST_CASE("an arrangement by rotation needs to know it", "[channel_arrangement]") {
  const Matrix<double> H = Matrix<double>::Identity(4, 4);
  CHECK_THROWS_AS(arranged_channels(ChannelArrangement::pairs, H, {}, {}), InputError);
  CHECK_THROWS_AS(arranged_channels(ChannelArrangement::frequency, H, {1, 0, 3, 2}, {}), InputError);
}
