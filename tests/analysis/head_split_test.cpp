#include "analysis/run/bytes.hpp"
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

namespace {

double largest_interval(const std::vector<double>& costs, const std::vector<std::size_t>& bounds) {
  double largest = 0;
  for (std::size_t part = 0; part + 1 < bounds.size(); ++part)
    largest = std::max(largest,
                       std::accumulate(costs.begin() + static_cast<std::ptrdiff_t>(bounds[part]),
                                       costs.begin() + static_cast<std::ptrdiff_t>(bounds[part + 1]), 0.0));
  return largest;
}

}  // namespace

TEST_CASE("equal costs are cut into equal intervals", "[ranks]") {
  CHECK(equal_intervals(std::vector<double>(8, 3.0), 2) == std::vector<std::size_t>{0, 4, 8});
  CHECK(equal_intervals(std::vector<double>(8, 3.0), 3) == std::vector<std::size_t>{0, 3, 5, 8});
  CHECK(equal_intervals(std::vector<double>(8, 3.0), 8) ==
        std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(equal_intervals(std::vector<double>(3, 1.0), 1) == std::vector<std::size_t>{0, 3});
  CHECK(equal_intervals({}, 3) == std::vector<std::size_t>{0, 0, 0, 0});
}

TEST_CASE("dear and cheap layers are cut by cost, not by number", "[ranks]") {
  // one full layer of 2 heads, then sliding windows at a tenth of its cost
  const std::vector<double> costs = {10, 10, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  CHECK(equal_intervals(costs, 2) == std::vector<std::size_t>{0, 2, 22});
  CHECK(equal_intervals(costs, 4) == std::vector<std::size_t>{0, 1, 2, 12, 22});
}

TEST_CASE("every item is in one interval, and none has more than its share and an item", "[ranks]") {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> cost(0.5, 20);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> costs(random() % 40);
    for (double& c : costs) c = cost(random);
    const int parts = 1 + static_cast<int>(random() % 12);
    const auto bounds = equal_intervals(costs, parts);
    REQUIRE(bounds.size() == static_cast<std::size_t>(parts) + 1);
    CHECK(bounds.front() == 0);
    CHECK(bounds.back() == costs.size());
    CHECK(std::is_sorted(bounds.begin(), bounds.end()));
    const double total = std::accumulate(costs.begin(), costs.end(), 0.0);
    const double most = costs.empty() ? 0 : *std::max_element(costs.begin(), costs.end());
    CHECK(largest_interval(costs, bounds) <= (total / parts + most) * (1 + 1e-12));
  }
}

TEST_CASE("bytes come back in the order in which they were put", "[ranks]") {
  ByteWriter out;
  out.put(std::vector<double>{1.5, -0.0});
  out.put(std::vector<std::uint8_t>{});
  out.put(std::vector<std::uint8_t>{7, 0, 255});
  const std::string bytes = out.take();

  ByteReader in(bytes);
  std::vector<double> numbers(2);
  in.get(std::span(numbers));
  CHECK(numbers == std::vector<double>{1.5, -0.0});
  CHECK(in.get<std::uint8_t>().empty());
  CHECK_FALSE(in.at_end());
  CHECK(in.get<std::uint8_t>() == std::vector<std::uint8_t>{7, 0, 255});
  CHECK(in.at_end());
  CHECK_THROWS_AS(in.get<double>(), std::logic_error);

  ByteReader wrong(bytes);
  std::vector<double> three(3);
  CHECK_THROWS_AS(wrong.get(std::span(three)), std::logic_error);
  const std::string cut_off = bytes.substr(0, 20);
  ByteReader cut(cut_off);
  CHECK_THROWS_AS(cut.get<double>(), std::logic_error);
}

TEST_CASE("a process alone needs nobody", "[ranks]") {
  Ranks alone;
  CHECK(alone.gather("mine") == std::vector<std::string>{"mine"});
  CHECK(fair_threads(alone) >= 1);
  CHECK_THROWS_AS(together(alone, [] { throw std::invalid_argument("as it is"); }), std::invalid_argument);
  CHECK_THROWS_AS(alone.send(0, ""), std::logic_error);
}
