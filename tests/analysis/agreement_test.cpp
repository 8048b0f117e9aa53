#include "analysis/results/agreement.hpp"

#include "tests/support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

using namespace kvreplay;

namespace {

std::vector<double> random_values(std::size_t n, unsigned seed) {
  std::mt19937 bits(seed);
  std::vector<double> values(n);
  // Squares spread over orders of magnitude, as errors do; without std:: distributions, which differ by
  // library.
  for (double& value : values) value = std::pow(10.0, -8.0 * bits() / std::mt19937::max());
  return values;
}

/// Straight from the definition: mid-ranks by counting, then Pearson's correlation of them.
double spearman_by_counting(const std::vector<double>& s, const std::vector<double>& e) {
  const auto ranks = [](const std::vector<double>& x) {
    std::vector<double> rank(x.size());
    for (std::size_t p = 0; p < x.size(); ++p)
      for (std::size_t other = 0; other < x.size(); ++other)
        rank[p] += x[other] < x[p] ? 1.0 : x[other] == x[p] ? 0.5 : 0.0;
    return rank;
  };
  const auto a = ranks(s), b = ranks(e);
  const double n = static_cast<double>(s.size());
  const double mean_a = std::accumulate(a.begin(), a.end(), 0.0) / n;
  const double mean_b = std::accumulate(b.begin(), b.end(), 0.0) / n;
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t p = 0; p < s.size(); ++p) {
    ab += (a[p] - mean_a) * (b[p] - mean_b);
    aa += (a[p] - mean_a) * (a[p] - mean_a);
    bb += (b[p] - mean_b) * (b[p] - mean_b);
  }
  return ab / std::sqrt(aa * bb);
}

}  // namespace

TEST_CASE("a metric agrees fully with itself", "[agreement]") {
  const auto e = random_values(500, 1);
  const Agreement a = agreement(e, e, true);
  CHECK(a[AgreementFigure::rel_l1] == 0.0);
  CHECK(a[AgreementFigure::spearman] == 1.0);
  for (const AgreementFigure f :
       {AgreementFigure::recall_40, AgreementFigure::recall_1pc, AgreementFigure::recall_5pc,
        AgreementFigure::recall_10pc, AgreementFigure::recall_20pc})
    CHECK(a[f] == 1.0);
}

TEST_CASE("any rising function of a score leaves ranks and sets as they are", "[agreement]") {
  const auto e = random_values(300, 2), s = random_values(300, 3);
  std::vector<double> squashed(s.size());
  std::transform(s.begin(), s.end(), squashed.begin(), [](double x) { return std::log(x) * 3 - 7; });
  const Agreement a = agreement(s, e, false), b = agreement(squashed, e, false);
  for (std::size_t f = 1; f < kAgreementFigures.size(); ++f) CHECK(a.values[f] == b.values[f]);
}

TEST_CASE("the reverse order has a Spearman of -1 and an empty overlap", "[agreement]") {
  const auto e = random_values(200, 4);
  std::vector<double> reversed(e.size());
  std::transform(e.begin(), e.end(), reversed.begin(), [](double x) { return -x; });
  const Agreement a = agreement(reversed, e, false);
  CHECK(a[AgreementFigure::spearman] == -1.0);
  CHECK(a[AgreementFigure::recall_20pc] == 0.0);
}

TEST_CASE("mass grows with k and is never more than the best", "[agreement]") {
  const auto e = random_values(1000, 5), s = random_values(1000, 6);
  const Agreement a = agreement(s, e, false), best = agreement(e, e, false);
  CHECK(a[AgreementFigure::mass_1pc] <= a[AgreementFigure::mass_40]);
  CHECK(a[AgreementFigure::mass_40] <= a[AgreementFigure::mass_5pc]);
  CHECK(a[AgreementFigure::mass_5pc] <= a[AgreementFigure::mass_10pc]);
  CHECK(a[AgreementFigure::mass_10pc] <= a[AgreementFigure::mass_20pc]);
  for (const AgreementFigure f :
       {AgreementFigure::mass_40, AgreementFigure::mass_1pc, AgreementFigure::mass_5pc,
        AgreementFigure::mass_10pc, AgreementFigure::mass_20pc})
    CHECK(a[f] <= best[f]);
}

TEST_CASE("Spearman follows its definition, ties included", "[agreement]") {
  for (unsigned seed = 0; seed < 5; ++seed) {
    auto s = random_values(97, 10 + seed), e = random_values(97, 20 + seed);
    for (double& x : s) x = std::floor(x * 8);  // many ties
    for (double& x : e) x = std::floor(x * 20);
    CHECK(agreement(s, e, false)[AgreementFigure::spearman] ==
          Approx(spearman_by_counting(s, e)).epsilon(1e-12));
  }
}

TEST_CASE("five candidates by hand", "[agreement]") {
  const std::vector<double> s = {5, 1, 4, 2, 3}, e = {4, 0, 5, 1, 2};
  const Agreement a = agreement(s, e, true);
  // |s - e| = 1 + 1 + 1 + 1 + 1, sum e = 12
  CHECK(a[AgreementFigure::rel_l1] == Approx(5.0 / 12).epsilon(1e-15));
  // ranks 5 1 4 2 3 and 4 1 5 2 3: rho = 1 - 6 * 2 / (5 * 24)
  CHECK(a[AgreementFigure::spearman] == Approx(0.9).epsilon(1e-15));
  // every percentage is one token, as 20 % of 5 is; the largest are positions 0 and 2
  CHECK(a[AgreementFigure::recall_20pc] == 0.0);
  CHECK(a[AgreementFigure::mass_20pc] == Approx(4.0 / 12).epsilon(1e-15));
  CHECK(a[AgreementFigure::mass_1pc] == Approx(4.0 / 12).epsilon(1e-15));
  CHECK(std::isnan(a[AgreementFigure::recall_40]));
}

TEST_CASE("mid-ranks by hand", "[agreement]") {
  // ranks of s: 1.5 1.5 3 4; of e: 1 2 3 4. Centred: -1 -1 .5 1.5 and -1.5 -.5 .5 1.5: 4.5 / sqrt(4.5 * 5)
  const std::vector<double> s = {1, 1, 2, 3}, e = {1, 2, 3, 4};
  CHECK(agreement(s, e, false)[AgreementFigure::spearman] == Approx(4.5 / std::sqrt(22.5)).epsilon(1e-15));
  const Ranking ranking(s);
  CHECK(ranking.centred_ranks() == std::vector<std::int32_t>{-2, -2, 1, 3});  // twice the centred rank
}

TEST_CASE("ties rank the lower position first", "[agreement]") {
  const std::vector<double> equal(10, 1.0);
  CHECK(Ranking(equal).order() == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  std::vector<double> e(10, 0.0);
  e[0] = 3;
  e[9] = 1;
  const Agreement a = agreement(equal, e, false);
  CHECK(a[AgreementFigure::recall_10pc] == 1.0);  // position 0 in both
  CHECK(a[AgreementFigure::mass_10pc] == 0.75);
  CHECK(a[AgreementFigure::recall_20pc] == 0.5);  // {0, 1} and {0, 9}
  CHECK(std::isnan(a[AgreementFigure::spearman]));
}

TEST_CASE("no error at all leaves shares undefined", "[agreement]") {
  const std::vector<double> s = {1, 2, 3}, none = {0, 0, 0};
  const Agreement a = agreement(s, none, true);
  CHECK(std::isnan(a[AgreementFigure::rel_l1]));
  CHECK(std::isnan(a[AgreementFigure::spearman]));
  CHECK(std::isnan(a[AgreementFigure::mass_20pc]));
  CHECK(a[AgreementFigure::recall_20pc] == 0.0);  // the top of three zeros is position 0
}

TEST_CASE("cuts round to the nearest and are at least one", "[agreement]") {
  using Cuts = std::array<std::optional<std::size_t>, kCuts>;
  CHECK(agreement_cuts(1) == Cuts{std::nullopt, 1, 1, 1, 1});
  CHECK(agreement_cuts(39) == Cuts{std::nullopt, 1, 2, 4, 8});  // 0.39, 1.95, 3.9, 7.8
  CHECK(agreement_cuts(40) == Cuts{40, 1, 2, 4, 8});
  CHECK(agreement_cuts(150) == Cuts{40, 2, 8, 15, 30});    // 1.5 and 7.5 round up
  CHECK(agreement_cuts(896) == Cuts{40, 9, 45, 90, 179});  // 8.96, 44.8, 89.6, 179.2
  CHECK(figure_applies(AgreementFigure::recall_40, 40, false));
  CHECK_FALSE(figure_applies(AgreementFigure::recall_40, 39, false));
  CHECK_FALSE(figure_applies(AgreementFigure::mass_40, 39, false));
  CHECK(figure_applies(AgreementFigure::mass_1pc, 1, false));
  CHECK_FALSE(figure_applies(AgreementFigure::rel_l1, 40, false));
}

TEST_CASE("exotic values neither crash nor lead", "[agreement]") {
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<double> s = {0, std::nan(""), inf, -1};
  CHECK(Ranking(s).order() == std::vector<std::int32_t>{2, 0, 3, 1});
  CHECK(agreement(std::vector<double>{}, std::vector<double>{}, true).values.size() ==
        kAgreementFigures.size());
  const Agreement one = agreement(std::vector<double>{2.0}, std::vector<double>{1.0}, true);
  CHECK(one[AgreementFigure::rel_l1] == 1.0);
  CHECK(one[AgreementFigure::recall_1pc] == 1.0);
  CHECK(std::isnan(one[AgreementFigure::spearman]));
}

TEST_CASE("a compensated sum keeps what a plain one loses", "[agreement]") {
  std::vector<double> values = {1e16};
  for (int i = 0; i < 1000; ++i) values.push_back(1.0);
  values.push_back(-1e16);
  CHECK(compensated_sum(values) == 1000.0);
  CHECK(compensated_sum({}) == 0.0);
}

TEST_CASE("long rows stay exact", "[agreement]") {
  std::vector<double> rising(131072);
  std::iota(rising.begin(), rising.end(), 0.0);
  CHECK(agreement(rising, rising, false)[AgreementFigure::spearman] == 1.0);
}

namespace {

/// Recall at k straight from the definition: the last r are in, and the k - r best of the others.
double recall_by_sorting(const std::vector<double>& s, const std::vector<double>& e, std::size_t k,
                         std::size_t r) {
  const auto best = [](const std::vector<double>& x, std::size_t n, std::size_t k_) {
    std::vector<std::size_t> order(n);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return x[a] > x[b]; });
    order.resize(k_);
    return order;
  };
  std::vector<std::size_t> found = best(s, s.size() - r, k - r);
  for (std::size_t p = s.size() - r; p < s.size(); ++p) found.push_back(p);
  const std::vector<std::size_t> wanted = best(e, e.size(), k);
  const auto hits = std::count_if(found.begin(), found.end(), [&](std::size_t p) {
    return std::find(wanted.begin(), wanted.end(), p) != wanted.end();
  });
  return static_cast<double>(hits) / static_cast<double>(k);
}

Agreement reserved(const std::vector<double>& s, const std::vector<double>& e, std::size_t r) {
  const Ranking score(s), reference(e);
  return with_reserve(agreement(score, reference, true), score, reference, r);
}

constexpr AgreementFigure kOfTops[] = {AgreementFigure::recall_40,   AgreementFigure::recall_1pc,
                                       AgreementFigure::recall_5pc,  AgreementFigure::recall_10pc,
                                       AgreementFigure::recall_20pc, AgreementFigure::mass_40,
                                       AgreementFigure::mass_1pc,    AgreementFigure::mass_5pc,
                                       AgreementFigure::mass_10pc,   AgreementFigure::mass_20pc};

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

}  // namespace

TEST_CASE("nothing reserved changes nothing, and ranks know no reserve", "[agreement]") {
  const auto e = random_values(200, 7), s = random_values(200, 8);
  const Agreement plain = agreement(s, e, true), none = reserved(s, e, 0), some = reserved(s, e, 17);
  CHECK(plain.values == none.values);
  CHECK(some[AgreementFigure::rel_l1] == plain[AgreementFigure::rel_l1]);
  CHECK(some[AgreementFigure::spearman] == plain[AgreementFigure::spearman]);
}

TEST_CASE("reserved tokens count as found inside the k, by sorting", "[agreement]") {
  for (unsigned seed = 0; seed < 4; ++seed) {
    auto e = random_values(203, 30 + seed), s = random_values(203, 40 + seed);
    for (double& x : s) x = std::floor(x * 6);  // many ties
    for (const std::size_t r : {1, 9, 20, 39}) {
      INFO("reserve " << r);
      const Agreement a = reserved(s, e, r);
      const auto cuts = agreement_cuts(203);
      for (std::size_t c = 0; c < kCuts; ++c) {
        const double recall = a.values[static_cast<std::size_t>(AgreementFigure::recall_40) + c];
        CHECK(same(recall, *cuts[c] > r ? recall_by_sorting(s, e, *cuts[c], r) : std::nan("")));
      }
    }
  }
}

TEST_CASE("what is reserved replaces what the score would have kept, by hand", "[agreement]") {
  // Ten candidates, the last two reserved, k = 2 leaves no choice; with one reserved 20 % are it and position
  // 0.
  const std::vector<double> s = {9, 8, 7, 6, 5, 4, 3, 2, 1, 0}, e = {1, 0, 0, 0, 0, 0, 0, 0, 2, 3};
  CHECK(agreement(s, e, false)[AgreementFigure::recall_20pc] == 0);  // {0, 1} of {9, 8}
  const Agreement one = reserved(s, e, 1);
  CHECK(one[AgreementFigure::recall_20pc] == 0.5);  // {9, 0}
  CHECK(one[AgreementFigure::mass_20pc] == Approx(4.0 / 6));
  CHECK(std::isnan(one[AgreementFigure::recall_10pc]));  // k = 1
  for (const AgreementFigure f : kOfTops) CHECK(std::isnan(reserved(s, e, 2)[f]));
  // A score that has the reserved ones on top anyway is as it was.
  const std::vector<double> rising = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  const Agreement with = reserved(rising, e, 1), without = agreement(rising, e, false);
  CHECK(with[AgreementFigure::recall_20pc] == without[AgreementFigure::recall_20pc]);
  CHECK(with[AgreementFigure::mass_20pc] == Approx(without[AgreementFigure::mass_20pc]));
}

TEST_CASE("more reserved than there are, and a single candidate, leave no figure of a top", "[agreement]") {
  const std::vector<double> s = {2, 1, 3}, e = {1, 2, 3};
  for (const std::size_t r : {3, 4, 1000})
    for (const AgreementFigure f : kOfTops) CHECK(std::isnan(reserved(s, e, r)[f]));
  CHECK(agreement({{5.0}}, {{2.0}}, false)[AgreementFigure::recall_20pc] == 1);
  for (const AgreementFigure f : kOfTops) CHECK(std::isnan(reserved({5}, {2}, 1)[f]));
  CHECK(figure_applies(AgreementFigure::recall_40, 40, false, 39));
  CHECK_FALSE(figure_applies(AgreementFigure::recall_40, 40, false, 40));
  CHECK_FALSE(figure_applies(AgreementFigure::recall_40, 39, false, 0));
  CHECK(figure_applies(AgreementFigure::spearman, 40, false, 40));
}
