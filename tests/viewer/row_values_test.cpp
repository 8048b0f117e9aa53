#include "sim/head_group.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/random_group.hpp"
#include "tests/viewer/on_queue.hpp"
#include "viewer/questions/entry_tiles.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;
using namespace kvreplay::viewer;
using Against = EntryView::Against;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

EntryMap<float> map_of(const HeadGroup<double>& group) {
  Workers workers(1);
  return {std::make_shared<const HeadGroup<float>>(to_float(group)), workers};
}

/// All values of a view, of every step-th row.
std::vector<float> all_values(const EntryMap<float>& map, const EntryView& view, Index step) {
  RowCache cache(std::size_t{1} << 30);
  std::vector<float> all;
  for (Index block = 0; block * kRowValues * step < map.group().T_q(); ++block) {
    const RowValues some =
        on_queue([&](JobControl& job) { return row_values(map, view, block, step, cache, job); });
    all.insert(all.end(), some.values.begin(), some.values.end());
  }
  return all;
}

/// From every cell of the row by itself, and the sum of their magnitudes.
std::pair<double, double> reference(const HeadGroup<double>& group, const EntryView& view, Index row,
                                    bool sum) {
  double total = kNaN, magnitude = 0;
  for (Index p = 0; p < group.T_all(); ++p) {
    const double cell = entry_exact(group, view, row, p);
    if (std::isnan(cell)) continue;
    magnitude += std::abs(cell);
    if (std::isnan(total))
      total = cell;
    else if (sum)
      total += cell;
    else if (std::abs(cell) > std::abs(total))
      total = cell;
  }
  return {total, magnitude};
}

std::vector<std::pair<std::string, GroupSpec>> groups() {
  return {
      {"plain", {.l = 300, .T = 310, .seed = 1}},
      {"queries of the end only", {.l = 90, .T = 97, .T_q = 33, .G = 3, .d = 5, .d_v = 3, .seed = 2}},
      {"sliding window", {.l = 130, .T = 140, .G = 1, .sliding_window = 7, .seed = 3}},
      {"non-causal, sink logit", {.l = 70, .T = 75, .causal = false, .sink_logit = 1.0, .seed = 4}},
      {"one row", {.l = 30, .T = 30, .T_q = 1, .seed = 5}},
      {"one token", {.l = 1, .T = 1, .seed = 6}},
      {"a sink", {.l = 65, .T = 65, .attention_sink = 3, .softcap = 30.0, .seed = 7}},
  };
}

std::vector<EntryView> views() {
  EntryView removed, one, logit, attn, difference;
  removed.shown = EntryTerm::exact_remove;
  one.shown = EntryTerm::key;
  one.query_head = 0;
  logit.shown = EntryTerm::logit;
  attn.shown = EntryTerm::attn;
  difference.shown = EntryTerm::joint;
  difference.against = Against::difference;
  difference.other = EntryTerm::exact_joint;
  return {removed, one, logit, attn, difference};
}

bool same_bytes(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

}  // namespace

TEST_CASE("a row's number is the sum of its cells, or the largest where they add up to nothing",
          "[row_values]") {
  for (const auto& named : groups()) {
    const EntryMap<float> map = map_of(random_group(named.second));
    const HeadGroup<double> group = converted<double>(map.group());
    for (const EntryView& view : views()) {
      const bool sum = view.shown == EntryTerm::exact_remove || view.shown == EntryTerm::key;
      CHECK(row_adds_up(view) == sum);
      const std::vector<float> values = all_values(map, view, 1);
      REQUIRE(values.size() == static_cast<std::size_t>(group.T_q()));
      for (Index r = 0; r < group.T_q(); r += 23) {
        const auto expected = reference(group, view, group.first_query() + r, sum);
        INFO(named.first << ", " << name_of(view.shown) << ", row " << r);
        // Cells are float32: their errors are in proportion to the row's largest terms.
        CHECK(std::abs(static_cast<double>(values[r]) - expected.first) <= 2e-5 * expected.second);
      }
    }
  }
}

TEST_CASE("every n-th row has the number that it has among all rows", "[row_values]") {
  const EntryMap<float> map =
      map_of(random_group({.l = 1100, .T = 1111, .T_q = 1047, .G = 1, .d = 4, .d_v = 4}));
  EntryView view;
  view.shown = EntryTerm::value;
  const std::vector<float> all = all_values(map, view, 1);
  REQUIRE(all.size() == 1047);
  for (const Index step : {2, 4, 512, 2048}) {
    const std::vector<float> some = all_values(map, view, step);
    REQUIRE(some.size() == static_cast<std::size_t>((1047 + step - 1) / step));
    for (std::size_t i = 0; i < some.size(); ++i)
      CHECK(same_bytes(some[i], all[i * static_cast<std::size_t>(step)]));
  }
  RowCache cache(1 << 20);
  CHECK(on_queue([&](JobControl& job) { return row_values(map, view, 5, 1, cache, job); }).values.empty());
}

TEST_CASE("a row of weights has its largest weight, and a row that sees one token all of it",
          "[row_values]") {
  // Two equal tokens: half and half in the second row.
  HeadGroup<double> group = random_group({.l = 2, .T = 2, .G = 2});
  group.k.row(1) = group.k.row(0);
  EntryView view;
  view.shown = EntryTerm::attn;
  const std::vector<float> both = all_values(map_of(group), view, 1);
  REQUIRE(both.size() == 2);
  CHECK(both[0] == Approx(2));  // two query heads
  CHECK(both[1] == Approx(1));
  view.query_head = 1;
  CHECK(all_values(map_of(group), view, 1)[1] == Approx(0.5));
}

TEST_CASE("cells without a value have no part in their row's number", "[row_values]") {
  HeadGroup<double> group = random_group({.l = 3, .T = 3, .G = 1});
  group.v.setZero();  // every value error is 0: 0 / 0
  EntryView view;
  view.shown = EntryTerm::joint;
  view.against = Against::relative;
  view.other = EntryTerm::value;
  for (const float value : all_values(map_of(group), view, 1)) CHECK(std::isnan(value));
  view.other = EntryTerm::attn;  // (0 - a) / a
  for (const float value : all_values(map_of(group), view, 1)) CHECK(value == Approx(-1));
}
