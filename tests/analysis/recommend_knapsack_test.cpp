#include "analysis/recommend/knapsack.hpp"
#include "tests/support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

using namespace kvreplay::recommend;

namespace {

struct Sizes {
  std::size_t layers, settings, heads, choices;
};

/// Smaller choices cost more, by and large; some come to the same, or are beaten in both.
Layers random_layers(std::mt19937_64& random, const Sizes& sizes) {
  std::uniform_real_distribution<double> unit;
  std::uniform_int_distribution<int> size(1, 16);
  Layers layers(sizes.layers);
  for (auto& settings : layers) {
    settings.resize(1 + random() % sizes.settings);
    for (Setting& setting : settings) {
      setting.resize(sizes.heads);
      for (auto& head : setting) {
        head.resize(1 + random() % sizes.choices);
        const double scale = std::exp(6 * unit(random));
        for (Choice& choice : head) {
          choice.bytes = size(random);
          choice.nats = random() % 5 == 0 ? 1 : scale * unit(random) / (choice.bytes * choice.bytes);
        }
      }
    }
    for (Setting& setting : settings) setting.resize(settings.front().size());
  }
  return layers;
}

/// The judge: every choice of every head.
double least_nats(const Layers& layers, double bytes, std::size_t layer = 0) {
  if (bytes < 0) return std::numeric_limits<double>::infinity();
  if (layer == layers.size()) return 0;
  double least = std::numeric_limits<double>::infinity();
  for (const Setting& setting : layers[layer]) {
    std::vector<std::size_t> at(setting.size());
    while (true) {
      double of_layer = 0, nats = 0;
      for (std::size_t h = 0; h < at.size(); ++h) {
        of_layer += setting[h][at[h]].bytes;
        nats += setting[h][at[h]].nats;
      }
      least = std::min(least, nats + least_nats(layers, bytes - of_layer, layer + 1));
      std::size_t h = 0;
      while (h < at.size() && ++at[h] == setting[h].size()) at[h++] = 0;
      if (h == at.size()) break;
    }
  }
  return least;
}

/// The true sums of a solution's choices.
Choice total(const Layers& layers, const Solution& solution) {
  Choice sum;
  REQUIRE(solution.layers.size() == layers.size());
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const Setting& setting = layers[l].at(solution.layers[l].setting);
    REQUIRE(solution.layers[l].choices.size() == setting.size());
    for (std::size_t h = 0; h < setting.size(); ++h) {
      const Choice& choice = setting[h].at(solution.layers[l].choices[h]);
      sum.bytes += choice.bytes;
      sum.nats += choice.nats;
    }
  }
  return sum;
}

}  // namespace

TEST_CASE("the cheapest choice of every head is that of all choices", "[recommend]") {
  std::mt19937_64 random(7);
  int proven = 0, found = 0;
  for (int round = 0; round < 400; ++round) {
    const Layers layers = random_layers(random, {1 + random() % 4, 3, 1 + random() % 2, 4});
    const double bytes = static_cast<double>(random() % (20 * layers.size()));
    const double least = least_nats(layers, bytes);
    const auto solution = cheapest(layers, bytes);
    INFO("round " << round << ", " << layers.size() << " layers, " << bytes << " bytes");
    REQUIRE(solution.has_value() == std::isfinite(least));
    if (!solution) continue;
    ++found;
    const Choice sum = total(layers, *solution);
    CHECK(solution->bytes == Approx(sum.bytes));
    CHECK(solution->nats == Approx(sum.nats));
    CHECK(sum.bytes <= bytes);
    CHECK(sum.nats == Approx(least).epsilon(1e-12));
    CHECK(solution->bound == Approx(least).epsilon(1e-12));
    // Where sums are thinned out it is a solution still, and the bound a bound.
    const auto rough = cheapest(layers, bytes, 1);
    CHECK(total(layers, *rough).bytes <= bytes);
    CHECK(rough->nats >= least - 1e-12 * std::abs(least));
    CHECK(rough->bound <= least + 1e-12 * std::abs(least));
    proven += rough->bound > (1 - 1e-12) * least ? 1 : 0;
  }
  CHECK(found > 200);
  CHECK(proven < found);  // thinning does lose something
}

TEST_CASE("more bytes never cost more, and what is too small for any choice has none", "[recommend]") {
  std::mt19937_64 random(8);
  const Layers layers = random_layers(random, {6, 3, 3, 5});
  CHECK_FALSE(cheapest(layers, 0));
  double before = std::numeric_limits<double>::infinity();
  for (double bytes = 0; bytes < 300; bytes += 7)
    if (const auto solution = cheapest(layers, bytes)) {
      CHECK(solution->nats <= before);
      before = solution->nats;
    }
  CHECK(std::isfinite(before));
  CHECK(cheapest({}, 0)->nats == 0);
  CHECK(cheapest({{{{{0, 5}, {0, 3}}}}}, 0)->layers.front().choices.front() == 1);
}

TEST_CASE("a model of 32 layers and 8 heads with all levers is within 1 % of the best", "[recommend]") {
  std::mt19937_64 random(9);
  std::uniform_real_distribution<double> unit;
  // A format each: bits of a number and what they cost; a head each: tokens and what the rest costs.
  Layers layers(32);
  double whole = 0;
  for (auto& settings : layers) {
    std::vector<double> weight(8), decay(8), loss(8);
    for (std::size_t h = 0; h < 8; ++h) {
      weight[h] = std::exp(4 * unit(random));
      decay[h] = 0.5 + 3 * unit(random);
      loss[h] = std::exp(4 * unit(random));
    }
    for (const double bits : {16.0, 8.5, 6.5, 5.0, 4.5, 3.25, 2.5}) {
      Setting& setting = settings.emplace_back(8);
      for (std::size_t h = 0; h < 8; ++h)
        for (int kept = 1000; kept >= 40; kept -= 20 + kept / 10)
          setting[h].push_back({kept * bits, weight[h] * std::pow(1 - kept / 1000.0, decay[h]) +
                                                 loss[h] * (bits == 16 ? 0 : std::pow(4.0, -bits))});
    }
    whole += 8 * 1000 * 16;
  }
  for (const double share : {0.5, 0.2, 0.1, 0.05}) {
    const auto solution = cheapest(layers, share * whole);
    REQUIRE(solution);
    const Choice sum = total(layers, *solution);
    INFO(share << ": " << sum.nats << " nats, bound " << solution->bound << ", " << sum.bytes / whole);
    CHECK(sum.bytes <= share * whole);
    CHECK(sum.nats <= 1.01 * solution->bound);
    CHECK(solution->bound <= sum.nats * (1 + 1e-12));
  }
}
