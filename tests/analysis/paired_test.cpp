#include "analysis/results/paired.hpp"

#include "analysis/results/kept_text.hpp"
#include "tests/support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace kvreplay {
namespace {

using Values = std::vector<double>;

Paired ratio(const Values& left, const Values& right) {
  return paired(left, right, Better::smaller, FigureScale::log);
}

/// A comparison over four prompts, with this mean and standard deviation.
Paired spread(double mean, double sd) {
  Paired seen;
  seen.prompts = 4;
  seen.mean = mean;
  seen.sd = sd;
  seen.p = student_p(mean / (sd / 2), 3);
  return seen;
}

std::optional<std::ptrdiff_t> needed(const Paired& one) {
  return prompts_needed(std::vector<Paired>{one})[0];
}

/// By trying one number after the other.
std::optional<std::ptrdiff_t> level_needs(const Paired& one, double level) {
  for (std::ptrdiff_t n = kFewestPrompts; n <= 1000; ++n)
    if ((student_t(1 - level, n - 1) + student_t(0.6, n - 1)) * one.sd / std::sqrt(static_cast<double>(n)) <=
        one.mean)
      return n;
  return std::nullopt;
}

}  // namespace

TEST_CASE("Student's p has the values of the tables", "[paired]") {
  CHECK(student_p(0, 4) == 1);
  CHECK(student_p(1, 1) == Approx(0.5).epsilon(1e-13));
  CHECK(student_p(2.5705818356363, 5) == Approx(0.05).epsilon(1e-10));
  CHECK(student_p(-2.5705818356363, 5) == student_p(2.5705818356363, 5));
  CHECK(student_p(4.032142983557536, 5) == Approx(0.01).epsilon(1e-10));
  CHECK(student_p(1.959963984540054, 1'000'000) == Approx(0.05).epsilon(1e-5));
  CHECK(student_p(HUGE_VAL, 3) == Approx(0).margin(1e-15));
  CHECK(std::isnan(student_p(std::nan(""), 3)));
  for (const std::ptrdiff_t n : {2, 3, 6, 40, 300}) CHECK(interval_t(n) == student_t(0.95, n - 1));
}

TEST_CASE("ratios within a prompt have their geometric mean and Student's interval", "[paired]") {
  // Ratios 2, 1/2, 4, 2 and a prompt without a value on one side.
  const Paired over = ratio({2, 1, 4, std::nan(""), 6}, {1, 2, 1, 3, 3});
  CHECK(over.prompts == 4);
  CHECK(over.wins == 1);
  CHECK(over.losses == 3);
  const double two = std::log(2.0), mean = 3 * two / 4, sd = two * std::sqrt(1.583333333333333333);
  CHECK(over.mean == Approx(mean).epsilon(1e-13));
  CHECK(over.sd == Approx(sd).epsilon(1e-13));
  CHECK(over.low == Approx(mean - 3.182446305284263 * sd / 2).epsilon(1e-9));
  CHECK(over.high == Approx(mean + 3.182446305284263 * sd / 2).epsilon(1e-9));
  CHECK(over.p == Approx(student_p(mean / (sd / 2), 3)).epsilon(1e-12));
  CHECK(over.center() == Approx(std::pow(8.0, 0.25)).epsilon(1e-12));
  CHECK(over.upper() == std::exp(over.high));

  // The other way round everything is.
  const Paired back = ratio({1, 2, 1, 3, 3}, {2, 1, 4, std::nan(""), 6});
  CHECK(back.wins == over.losses);
  CHECK(back.mean == -over.mean);
  CHECK(back.low == Approx(-over.high).epsilon(1e-14));
  CHECK(back.p == Approx(over.p).epsilon(1e-14));
}

TEST_CASE("pairs with nothing to say have no figures that say something", "[paired]") {
  const Paired none = ratio({std::nan("")}, {1});
  CHECK(none.prompts == 0);
  CHECK(std::isnan(none.mean));
  const Paired one = ratio({2}, {1});
  CHECK(one.center() == Approx(2));
  CHECK(one.losses == 1);
  CHECK(std::isnan(one.low));
  CHECK(std::isnan(one.p));
  CHECK_FALSE(needed(one));
  // Two prompts, and three, have a mean and a spread, and neither interval nor p.
  const Paired two = ratio({2, 8}, {1, 1});
  CHECK(two.center() == Approx(4));
  CHECK(two.sd == Approx(std::log(2.0) * std::sqrt(2.0)));
  CHECK(std::isnan(two.low));
  CHECK(std::isnan(two.high));
  CHECK(std::isnan(two.p));
  CHECK_FALSE(needed(two));
  const Paired three = ratio({2, 8, 4}, {1, 1, 1});
  CHECK(three.center() == Approx(4));
  CHECK((std::isnan(three.low) && std::isnan(three.high) && std::isnan(three.p)));
  // Equal everywhere: zeros too, whose ratio is 1.
  const Paired same = ratio({0, 0.5, 3, 4}, {0, 0.5, 3, 4});
  CHECK(same.wins + same.losses == 0);
  CHECK(same.mean == 0);
  CHECK(same.p == 1);
  CHECK_FALSE(needed(same));
  // The same ratio everywhere: no spread.
  const Paired twice = ratio({2, 4, 8, 6}, {1, 2, 4, 3});
  CHECK(twice.low == twice.high);
  CHECK(twice.p == 0);
  CHECK(needed(twice) == kFewestPrompts);
  // A loss of nothing in one prompt: no ratio, and still wins.
  const Paired zero = ratio({0, 1, 1}, {1, 2, 3});
  CHECK(zero.prompts == 3);
  CHECK(zero.wins == 3);
  CHECK(std::isnan(zero.mean));
  CHECK(std::isnan(zero.p));
}

TEST_CASE("shares and correlations are set against each other by their difference", "[paired]") {
  const Values left{0.5, 0.7, 0.6, 0.6}, right{0.4, 0.4, 0.4, 0.4};
  const Paired over = paired(left, right, Better::larger, FigureScale::share);
  CHECK(over.by == PairedBy::difference);
  CHECK(over.wins == 4);
  CHECK(over.mean == Approx(0.2).epsilon(1e-14));
  CHECK(over.center() == over.mean);
  CHECK(over.high - over.mean == Approx(3.182446305284263 * std::sqrt(0.02 / 3) / 2).epsilon(1e-9));

  // No further than two values can lie apart.
  const Values some{1, 0.2, 0.9, 1}, none{0, 0, 0.9, 0};
  const auto apart = [&](FigureScale scale) { return paired(some, none, Better::larger, scale); };
  CHECK(apart(FigureScale::share).low ==
        Approx(0.55 - 3.182446305284263 * std::sqrt(0.83 / 3) / 2).epsilon(1e-9));
  CHECK(apart(FigureScale::share).high == 1);
  CHECK(apart(FigureScale::correlation).high == Approx(0.55 + 3.182446305284263 * std::sqrt(0.83 / 3) / 2));
  CHECK(apart(FigureScale::share).p == apart(FigureScale::correlation).p);
}

TEST_CASE("Holm's p are those of the textbook", "[paired]") {
  CHECK(holm({}).empty());
  const Values adjusted = holm(Values{0.01, 0.04, std::nan(""), 0.03, 0.005});
  CHECK(adjusted[0] == Approx(0.03));  // 3 x 0.01
  CHECK(adjusted[1] == Approx(0.06));  // not below the one before: 1 x 0.04
  CHECK(std::isnan(adjusted[2]));
  CHECK(adjusted[3] == Approx(0.06));  // 2 x 0.03
  CHECK(adjusted[4] == Approx(0.02));  // 4 x 0.005
  CHECK(holm(Values{0.6, 0.9})[0] == 1);
}

TEST_CASE("as many prompts as are said to be needed tell four of five", "[paired]") {
  const Paired seen = spread(std::log(1.2), 0.2);
  const auto prompts = needed(seen);
  REQUIRE(prompts);
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal(seen.mean, seen.sd);
  int told = 0;
  constexpr int kDraws = 2000;
  for (int draw = 0; draw < kDraws; ++draw) {
    Values left, right(static_cast<std::size_t>(*prompts), 1);
    for (std::ptrdiff_t i = 0; i < *prompts; ++i) left.push_back(std::exp(normal(random)));
    told += ratio(left, right).p < 0.05;
  }
  CHECK(static_cast<double>(told) / kDraws == Approx(0.83).margin(0.06));
  CHECK_FALSE(needed(spread(std::log(1.2), 100)));
}

TEST_CASE("of several differences as many prompts are needed as Holm's correction asks for", "[paired]") {
  const Paired clear = spread(0.4, 0.2), middling = spread(0.2, 0.2), faint = spread(0.05, 0.2);
  const std::vector<Paired> asked{middling, faint, clear};
  const auto all = prompts_needed(asked);
  // The smallest p has to be below a third of 5 %, the next below a half, the last below 5 %.
  CHECK(all[2] == level_needs(clear, 0.05 / 3));
  CHECK(all[0] == level_needs(middling, 0.05 / 2));
  CHECK(all[1] == level_needs(faint, 0.05));
  CHECK(*all[2] > *needed(clear));
  CHECK(*all[0] > *needed(middling));

  // Equal ones: the last is told only once the first is, at the strictest level.
  const auto alike = prompts_needed(std::vector<Paired>(10, middling));
  for (const auto& one : alike) CHECK(one == level_needs(middling, 0.05 / 10));
  // A difference that can never be significant leaves those behind it without an answer, too.
  const auto never = prompts_needed(std::vector<Paired>{clear, spread(0.0001, 0.2), spread(0, 0.2)});
  CHECK(never[0].has_value());
  CHECK_FALSE(never[1]);
  CHECK_FALSE(never[2]);
}

TEST_CASE("a budget reads as what stays, whichever way it was asked for", "[paired]") {
  CHECK(kept_text("0.8") == "kept 20 %");
  CHECK(kept_text("0.7") == "kept 30 %");
  CHECK(kept_text("0.995") == "kept 0.5 %");
  CHECK(kept_text("410") == "kept 410 tokens");
  CHECK(kept_text("1") == "kept 1 token");
  CHECK(kept_text("0") == "kept 0 tokens");
  CHECK(kept_text("") == "");
  CHECK(kept_text("mixed") == "mixed");
  CHECK(kept_share("0.9", 7) == 0.1);
  CHECK(kept_share("50", 200) == 0.25);
  CHECK_FALSE(kept_share("1.5", 10));
  CHECK_FALSE(kept_share("", 10));
  CHECK(rest_of(0.7) == 0.3);
  CHECK(percent(0.123) == "12.3 %");
}

}  // namespace kvreplay
