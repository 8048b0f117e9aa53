#include "tests/support/catch.hpp"
#include "tests/support/random_group.hpp"
#include "tests/viewer/on_queue.hpp"
#include "viewer/questions/inspector_facts.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;
using namespace kvreplay::viewer;

namespace {

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

HeadSummary summary_of_group(const GroupSpec& spec, Index window, bool keep_tokens = true) {
  return on_queue([&](JobControl& job) {
    HeadSummaryOptions options;
    options.window = window;
    options.keep_tokens = keep_tokens;
    options.metrics = {TokenMetric::attn, TokenMetric::knorm, TokenMetric::keydiff,
                       TokenMetric::exact_remove};
    return summarise_head(to_float(random_group(spec)), options, job.workers());
  });
}

}  // namespace

TEST_CASE("token ranks are a permutation, whatever the values") {
  const std::vector<double> values = {3, kNotANumber, -kInf, 3, 0, -0.0, kInf, kNotANumber, 1e-300};
  std::vector<Index> ranks;
  for (std::size_t i = 0; i < values.size(); ++i) ranks.push_back(rank_of(values, static_cast<Index>(i)));
  // The largest first, equal ones by position (0 and -0 are equal), NaN last.
  CHECK(ranks == std::vector<Index>{2, 8, 7, 3, 5, 6, 1, 9, 4});
  CHECK(rank_of(std::vector<double>{kNotANumber}, 0) == 1);
}

TEST_CASE("largest of chosen tokens follows their ranks and leaves out what has none") {
  const std::vector<double> values = {5, kNotANumber, 7, 5, -1};
  const std::vector<Index> chosen = {4, 3, 1, 0, 99, -1};
  CHECK(largest_of(values, chosen, 10) == std::vector<Index>{0, 3, 4});
  CHECK(largest_of(values, chosen, 2) == std::vector<Index>{0, 3});
  CHECK(largest_of(values, chosen, 0).empty());
  CHECK(largest_of(values, {}, 3).empty());
  CHECK(largest_of({}, chosen, 3).empty());
}

TEST_CASE("figures of a token are the summary's, with its place and share") {
  const Index l = 40, window = 5;
  const HeadSummary summary = summary_of_group({.l = l}, window);
  const std::vector<TokenFigure> figures = figures_of_token(summary, 11);
  REQUIRE(figures.size() == 4);
  CHECK(figures[0].metric == TokenMetric::attn);
  CHECK(figures[0].value == (*summary.tokens)[TokenMetric::attn](0, 11));
  // Attention sums to 1 a row and query head.
  CHECK(figures[0].share == Approx(figures[0].value / (2.0 * window)).epsilon(1e-5));
  // Norms are negative: a share of their sum means nothing.
  CHECK(figures[1].metric == TokenMetric::knorm);
  CHECK(std::isnan(figures[1].share));
  for (const TokenMetric metric : {TokenMetric::attn, TokenMetric::exact_remove}) {
    std::vector<Index> ranks;
    double shares = 0;
    for (Index p = 0; p < l; ++p)
      for (const TokenFigure& figure : figures_of_token(summary, p))
        if (figure.metric == metric) {
          ranks.push_back(figure.rank);
          shares += figure.share;
        }
    std::sort(ranks.begin(), ranks.end());
    std::vector<Index> all(l);
    std::iota(all.begin(), all.end(), Index{1});
    CHECK(ranks == all);
    CHECK(shares == Approx(1));
  }
}

TEST_CASE("figures of a token that is no candidate are none") {
  const HeadSummary summary = summary_of_group({.l = 40}, 5);
  CHECK(figures_of_token(summary, 40).empty());  // the first decoded one
  CHECK(figures_of_token(summary, -1).empty());
  CHECK(figures_of_token(summary_of_group({.l = 40}, 5, false), 3).empty());
  CHECK(figures_of_token({}, 0).empty());
}

TEST_CASE("figures of chosen tokens add up to the whole") {
  const HeadSummary summary = summary_of_group({.l = 41}, 7);
  std::vector<Index> even, odd;
  for (Index p = 0; p < 41; ++p) (p % 2 == 0 ? even : odd).push_back(p);
  const auto a = figures_of_tokens(summary, even), b = figures_of_tokens(summary, odd);
  REQUIRE(a.size() == 4);
  for (std::size_t i = 0; i < a.size(); ++i) {
    CHECK(a[i].metric == b[i].metric);
    const double whole = summary.sums[static_cast<std::size_t>(a[i].metric)];
    CHECK(a[i].sum + b[i].sum == Approx(whole));
    if (a[i].metric == TokenMetric::attn || a[i].metric == TokenMetric::exact_remove)
      CHECK(a[i].share + b[i].share == Approx(1));
    else
      CHECK(std::isnan(a[i].share));
  }
}

TEST_CASE("figures of chosen tokens leave out what is no candidate") {
  const HeadSummary summary = summary_of_group({.l = 40}, 5);
  const std::vector<Index> chosen = {2, 40, 47, -3}, none;
  CHECK(figures_of_tokens(summary, chosen)[0].sum == figures_of_token(summary, 2)[0].value);
  CHECK(figures_of_tokens(summary, none)[0].sum == 0);
  CHECK(figures_of_tokens(summary, none)[0].share == 0);
  CHECK(figures_of_tokens({}, chosen).empty());
}
