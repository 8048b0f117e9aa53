#include "analysis/run/ranks.hpp"

#include "analysis/run/run.hpp"
#include "tests/support/catch.hpp"

#include <algorithm>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

using namespace kvreplay;

using Dealt = std::vector<std::vector<std::size_t>>;

TEST_CASE("layers of equal cost are dealt out in turn, as shards are", "[ranks]") {
  CHECK(dealt_out(std::vector<double>(5, 3.0), 2) == Dealt{{0, 2, 4}, {1, 3}});
  CHECK(dealt_out(std::vector<double>(3, 1.0), 1) == Dealt{{0, 1, 2}});
  CHECK(dealt_out(std::vector<double>(2, 1.0), 4) == Dealt{{0}, {1}, {}, {}});
  CHECK(dealt_out({}, 2) == Dealt{{}, {}});
  const std::vector<Index> layers = {2, 3, 5, 8, 9, 11, 12};
  const Dealt dealt = dealt_out(std::vector<double>(layers.size(), 0.1), 3);
  for (Index part = 0; part < 3; ++part) {
    std::vector<Index> mine;
    for (const std::size_t item : dealt[part]) mine.push_back(layers[item]);
    CHECK(mine == layers_of_shard(layers, {part + 1, 3}));
  }
}

TEST_CASE("dear and cheap layers are dealt out by cost, not by number", "[ranks]") {
  // every other layer a sliding window at a tenth of a full one's cost
  CHECK(dealt_out(std::vector<double>{10, 1, 10, 1, 10, 1, 10, 1}, 2) == Dealt{{0, 3, 4, 7}, {1, 2, 5, 6}});
}

TEST_CASE("every layer is one rank's, and none has more than its share and a layer", "[ranks]") {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> cost(0.5, 20);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> costs(random() % 40);
    for (double& c : costs) c = cost(random);
    const int parts = 1 + static_cast<int>(random() % 12);
    const double total = std::accumulate(costs.begin(), costs.end(), 0.0);
    const double most = costs.empty() ? 0 : *std::max_element(costs.begin(), costs.end());
    std::vector<int> dealt_to(costs.size());
    for (const std::vector<std::size_t>& mine : dealt_out(costs, parts)) {
      double sum = 0;
      for (const std::size_t item : mine) {
        ++dealt_to[item];
        sum += costs[item];
      }
      CHECK(std::is_sorted(mine.begin(), mine.end()));
      CHECK(sum <= (total / parts + most) * (1 + 1e-12));
    }
    CHECK(std::count(dealt_to.begin(), dealt_to.end(), 1) == std::ssize(costs));
  }
}

TEST_CASE("a process alone needs nobody", "[ranks]") {
  Ranks alone;
  CHECK(alone.gather("mine") == std::vector<std::string>{"mine"});
  CHECK(fair_threads(alone) >= 1);
  CHECK_THROWS_AS(together(alone, [] { throw std::invalid_argument("as it is"); }), std::invalid_argument);
}
