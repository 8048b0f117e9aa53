#include "sim/tokens/column_totals.hpp"
#include "sim/tokens/loss_totals.hpp"
#include "sim/tokens/token_metrics.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/random_group.hpp"

#include <array>
#include <string>
#include <vector>

// Rows go through both passes in batches whose logits are kept, a last one without.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

/// Metrics that are sums, by RowScore.
constexpr std::array<TokenMetric, kRowSums> kSums = {
    TokenMetric::attn,      TokenMetric::attn_sq,     TokenMetric::key,         TokenMetric::joint,
    TokenMetric::exact_key, TokenMetric::exact_joint, TokenMetric::exact_remove};

/// No logits, those of few panels, and as many as there are.
template <class T>
std::vector<Index> limits(const HeadGroup<T>& group) {
  const Index panel = group.G() * kPanelWidth<T> * group.T_all() * static_cast<Index>(sizeof(T));
  return {0, panel / 2, panel, 5 * panel, kMostLogits};
}

/// To the rounding of sums over rows.
template <class T>
std::string alike(const Vector<double>& want, const Vector<double>& got) {
  return mismatch("alike", want.transpose(), got.transpose(), sizeof(T) == 4 ? kSingle : kDouble);
}

template <class T>
void check_batches(const GroupSpec& spec, Index window) {
  const HeadGroup<T> group = converted<T>(random_group(spec));
  const RowRange rows = window_rows(group.l, group.first_query(), window);
  TokenOptions options{window, true, {}};
  for (const TokenMetric metric : kSums) options.metrics.insert(metric);
  const TokenMetrics want = token_metrics_reference(converted<double>(group), options);
  Workers workers(2), alone(1);
  const PreparedValues<T> values = prepare_values(group, workers);
  const std::vector<ColumnTotals> none_kept =
      column_totals(group, values, rows, ColumnSet::future, workers, 0);
  for (const Index most : limits(group)) {
    INFO("l = " << spec.l << ", window " << window << ", " << most << " bytes of logits, numbers of "
                << sizeof(T));
    const auto totals_of = [&](ColumnSet columns, Workers& by) {
      return column_totals(group, values, rows, columns, by, most);
    };
    const std::vector<ColumnTotals> all = totals_of(ColumnSet::window, workers);
    const std::vector<ColumnTotals> again = totals_of(ColumnSet::window, alone);
    const std::vector<ColumnTotals> weights = totals_of(ColumnSet::weights, workers);
    const std::vector<ColumnTotals> future = totals_of(ColumnSet::future, workers);
    const std::vector<ColumnTotals> largest = totals_of(ColumnSet::max_attn, workers);
    for (std::size_t s = 0; s < kSums.size(); ++s) {
      const TokenMetric metric = kSums[s];
      Matrix<double> got(group.G(), group.l);
      for (Index g = 0; g < group.G(); ++g) {
        got.row(g) = all[g].sums[s].transpose();
        CHECK(all[g].sums[s] == again[g].sums[s]);
      }
      CHECK(mismatch(std::string(name_of(metric)), want[metric], got, sizeof(T) == 4 ? kSingle : kDouble) ==
            "");
    }
    for (Index g = 0; g < group.G(); ++g) {
      for (const RowScore score : {RowScore::attention, RowScore::attention_sq})
        CHECK(weights[g][score] == all[g][score]);
      CHECK(alike<T>(all[g][RowScore::exact_remove], future[g][RowScore::exact_remove]) == "");
      CHECK(alike<T>(none_kept[g].max_attn, future[g].max_attn) == "");
      CHECK(largest[g].max_attn == future[g].max_attn);
    }
  }
}

template <class T>
void check_losses(const GroupSpec& spec) {
  const HeadGroup<T> group = converted<T>(random_group(spec));
  const HeadGroup<double> exact = converted<double>(group);
  const RowRange rows = group.g_window.rows;
  Workers workers(2);
  const PreparedValues<T> values = prepare_values(group, workers);
  const std::vector<LossTotals> none_kept = loss_totals(group, values, group.g_window, rows, workers, 0);
  Matrix<double> want(group.G(), group.l), got = want;
  for (Index g = 0; g < group.G(); ++g)
    want.row(g) = loss_totals_reference(exact, g, exact.g_window, rows).transpose();
  for (const Index most : limits(group)) {
    INFO("l = " << spec.l << ", " << most << " bytes of logits, numbers of " << sizeof(T));
    const std::vector<LossTotals> totals = loss_totals(group, values, group.g_window, rows, workers, most);
    for (Index g = 0; g < group.G(); ++g) {
      got.row(g) = totals[g].loss.transpose();
      CHECK(alike<T>(none_kept[g].max_attn, totals[g].max_attn) == "");
    }
    CHECK(mismatch("loss", want, got, sizeof(T) == 4 ? kSingle : kDouble) == "");
  }
}

}  // namespace

TEST_CASE("batches of rows follow one another and keep to their bytes", "[token_metrics]") {
  const HeadGroup<float> causal = to_float(random_group({.l = 1000, .T = 1010, .G = 3}));
  const HeadGroup<float> sliding =
      to_float(random_group({.l = 1000, .T = 1010, .G = 3, .sliding_window = 200}));
  const HeadGroup<float> whole = to_float(random_group({.l = 1000, .T = 1010, .G = 3, .causal = false}));
  const RowRange rows{37, 1000};
  for (const HeadGroup<float>* group : {&causal, &sliding, &whole})
    for (const Index most : {Index{0}, Index{100} << 10, Index{300} << 10, Index{1} << 20, kMostLogits}) {
      const std::vector<RowBatch> batches = row_batches(*group, rows, most);
      Index begin = rows.begin;
      for (std::size_t b = 0; b < batches.size(); ++b) {
        const auto& [batch, keep_logits] = batches[b];
        CHECK(batch.begin == begin);
        REQUIRE(batch.end > batch.begin);
        begin = batch.end;
        const Index columns = group->end_visible(batch.end - 1) - group->first_visible(batch.begin);
        const Index padded = panels_of<float>(batch.count()) * kPanelWidth<float>;
        if (keep_logits)
          CHECK(3 * padded * columns * 4 <= most);
        else
          CHECK(b + 1 == batches.size());
        if (b + 1 < batches.size()) CHECK(batch.count() % kPanelWidth<float> == 0);
      }
      CHECK(begin == rows.end);
      if (most == 0) CHECK(!batches.front().keep_logits);
      if (most == kMostLogits) CHECK((batches.size() == 1 && batches.front().keep_logits));
    }
  // A panel of the last rows takes 3 x 32 x 1000 x 4 bytes.
  CHECK(!row_batches(causal, rows, Index{300} << 10).back().keep_logits);
  CHECK(row_batches(causal, rows, Index{300} << 10).front().keep_logits);
  CHECK(row_batches(sliding, rows, Index{300} << 10).size() > 2);
}

TEST_CASE("metrics are those of the reference however many logits are kept", "[token_metrics]") {
  const auto check = [](const GroupSpec& spec, Index window) {
    check_batches<float>(spec, window);
    check_batches<double>(spec, window);
  };
  check({.l = 140, .T = 143, .attention_sink = 0}, 140);
  check({.l = 160, .T = 163, .G = 1, .d = 7, .d_v = 5, .sink_logit = 1.0}, 100);
  check({.l = 220, .T = 230, .attention_sink = 150, .sliding_window = 40}, 75);
  check({.l = 105, .T = 106, .G = 1, .logit_std = 4.0, .softcap = 30.0}, 105);
  check({.l = 100, .T = 103, .G = 1, .causal = false}, 100);
}

TEST_CASE("batches of a long prompt's rows give what all rows at once do", "[token_metrics]") {
  Workers workers(2);
  for (const GroupSpec& spec :
       {GroupSpec{.l = 1100, .T = 1103, .G = 1}, GroupSpec{.l = 1100, .T = 1101, .sliding_window = 600},
        GroupSpec{.l = 700, .T = 703, .causal = false, .sliding_window = 300},
        GroupSpec{.l = 700, .T = 703, .causal = false, .sliding_window = 90, .two_sided = true}}) {
    const HeadGroup<float> group = to_float(random_group(spec));
    const PreparedValues<float> values = prepare_values(group, workers);
    for (const ColumnSet columns :
         {ColumnSet::window, ColumnSet::future, ColumnSet::weights, ColumnSet::max_attn}) {
      INFO("l = " << spec.l << ", columns " << static_cast<int>(columns));
      const RowRange rows{150, group.l};
      const std::vector<ColumnTotals> want = column_totals(group, values, rows, columns, workers);
      for (const Index most : limits(group)) {
        const std::vector<ColumnTotals> got = column_totals(group, values, rows, columns, workers, most);
        for (Index g = 0; g < group.G(); ++g)
          for (std::size_t s = 0; s <= kSums.size(); ++s) {
            const auto sum = [&](const ColumnTotals& t) { return s < kSums.size() ? t.sums[s] : t.max_attn; };
            CHECK(alike<float>(sum(want[g]), sum(got[g])) == "");
          }
      }
    }
  }
}

TEST_CASE("losses are those of the reference however many logits are kept", "[loss]") {
  for (const GroupSpec& spec :
       {GroupSpec{.l = 120, .T = 130, .samples = 5, .window_gradients = 110},
        GroupSpec{.l = 220, .T = 230, .d = 5, .d_v = 7, .sliding_window = 40, .window_gradients = 75},
        GroupSpec{.l = 100, .T = 110, .G = 1, .softcap = 3.0, .window_gradients = 70}}) {
    check_losses<float>(spec);
    check_losses<double>(spec);
  }
}
