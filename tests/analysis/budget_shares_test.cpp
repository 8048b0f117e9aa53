#include "analysis/budgets/budget_frame.hpp"
#include "tests/analysis/budget_cases.hpp"
#include "tests/support/catch.hpp"

#include <algorithm>

using namespace kvreplay;
using namespace kvreplay::test;

TEST_CASE("shares become integers that keep the sum and the bounds", "[budgets]") {
  Draw draw(1);
  for (int round = 0; round < 2000; ++round) {
    const Index n = 1 + draw.below(12), upper = 1 + draw.below(40), lower = draw.below(upper + 1);
    const Index total = lower * n + draw.below(n * (upper - lower) + 1);
    std::vector<double> shares(n);
    for (double& share : shares) share = draw.unit() < 0.3 ? 0 : 60 * draw.unit() * draw.unit();
    const Budgets budgets = round_shares(shares, total, lower, upper);
    CAPTURE(n, upper, lower, total, shares, budgets);
    REQUIRE(fits({1, n, upper, total, lower, 0}, budgets));
    // more share, no smaller budget
    for (std::size_t a = 0; a < shares.size(); ++a)
      for (std::size_t b = 0; b < shares.size(); ++b)
        if (shares[a] > shares[b] + 1e-6) REQUIRE(budgets[a] >= budgets[b]);
  }
}

TEST_CASE("the remainder goes by largest fraction, then lower index", "[budgets]") {
  const std::vector<double> shares = {1.25, 2.5, 0.75, 3.5};  // floors 1 2 0 3, two left
  CHECK(round_shares(shares, 8, 0, 10) == Budgets{1, 3, 1, 3});
  const std::vector<double> halves = {0.5, 0.5, 0.5, 0.5};
  CHECK(round_shares(halves, 2, 0, 10) == Budgets{1, 1, 0, 0});
}

TEST_CASE("fractions that differ by rounding are equal", "[budgets]") {
  const std::vector<double> shares = {0.3, 0.1 + 0.2, 0.3, 1.1};  // the second is a unit above the others
  CHECK(round_shares(shares, 2, 0, 10) == Budgets{1, 0, 0, 1});
  const std::vector<double> whole = {3 - 1e-12, 2, 1 + 1e-12};
  CHECK(round_shares(whole, 6, 0, 10) == Budgets{3, 2, 1});
  for (Index n = 1; n <= 64; ++n) {
    const std::vector<double> equal(n, 100.0 / static_cast<double>(n));
    const Budgets budgets = round_shares(equal, 100, 0, 100);
    for (Index i = 0; i < n; ++i) CHECK(budgets[i] == 100 / n + (i < 100 % n ? 1 : 0));
  }
}

TEST_CASE("shares beyond the bounds give to the others in proportion", "[budgets]") {
  // 12 is cut to 8; its 4 go to 1 and 3 in proportion, 1:3
  CHECK(round_shares(std::vector<double>{12, 1, 3}, 16, 0, 8) == Budgets{8, 2, 6});
  // 0 is raised to 2; the others pay in proportion
  CHECK(round_shares(std::vector<double>{0, 10, 20}, 29, 2, 100) == Budgets{2, 9, 18});
  // shares of 0 take what no factor could place
  CHECK(round_shares(std::vector<double>{1, 0, 0}, 9, 0, 5) == Budgets{5, 2, 2});
  CHECK(round_shares(std::vector<double>{0, 0, 0}, 4, 0, 5) == Budgets{2, 1, 1});
  CHECK(round_shares(std::vector<double>{2, 2}, 0, 0, 5) == Budgets{0, 0});
  CHECK(round_shares(std::vector<double>{1, 2}, 10, 0, 5) == Budgets{5, 5});
}

TEST_CASE("the total budget rounds a half up whatever a double makes of sigma", "[budgets]") {
  CHECK(total_budget(0.9, 15, 1) == 2);           // 1.5; in doubles (1 - 0.9) 15 is below it
  CHECK(total_budget(0.7, 5, 1) == 2);            // 1.5
  CHECK(total_budget(0.8, 4096, 256) == 209715);  // 209715.2
  CHECK(total_budget(0.5, 3, 1) == 2);
  CHECK(total_budget(0.0, 4096, 256) == 4096 * 256);
  CHECK(total_budget(1.0, 4096, 256) == 0);
  for (Index percent = 0; percent <= 100; ++percent)
    for (Index l = 0; l <= 130; ++l) {
      const Index exact = (2 * (100 - percent) * l + 100) / 200;
      CHECK(total_budget(static_cast<double>(percent) / 100, l, 1) == exact);
      CHECK(total_budget(static_cast<double>(percent) / 100, l, 1 << 20) ==
            (2 * (100 - percent) * (l << 20) + 100) / 200);
    }
}

TEST_CASE("a lower bound beyond the total is cut to what every head can have", "[budgets]") {
  CHECK(budget_frame(2, 4, 100, 0.5, 36).lower == 36);
  CHECK(budget_frame(2, 4, 100, 0.9, 36).lower == 10);
  CHECK(budget_frame(2, 4, 100, 0.0, 200).lower == 100);
}
