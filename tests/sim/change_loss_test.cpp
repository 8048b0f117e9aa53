#include "sim/loss/change_loss.hpp"

#include "sim/gradient_rows.hpp"
#include "sim/tokens/loss_totals.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/kept_changes.hpp"
#include "tests/support/random_group.hpp"

#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

/// Panels as kept_changes() gives them, and the same numbers as a matrix.
template <class T>
struct Change {
  std::vector<T> panels;
  Matrix<double> rows;
};
template <class T>
Change<T> change_of(const Matrix<double>& D) {
  Change<T> change{std::vector<T>(panels_of<T>(D.rows()) * D.cols() * kPanelWidth<T>), D};
  for (Index r = 0; r < D.rows(); ++r)
    for (Index c = 0; c < D.cols(); ++c) {
      change.panels[panel_entry<T>(c, r, D.cols())] = static_cast<T>(D(r, c));
      change.rows(r, c) = static_cast<double>(static_cast<T>(D(r, c)));
    }
  return change;
}

struct LossCase {
  std::string name;
  GroupSpec spec;
  RowRange changed;  ///< of future rows, counted from the first
  RowRange rows;     ///< likewise
};
std::vector<LossCase> loss_cases() {
  return {{"plain", {}, {0, 8}, {0, 8}},
          {"one row", {.T = 41}, {0, 1}, {0, 1}},
          {"one sample", {.samples = 1}, {0, 8}, {0, 8}},
          {"one channel", {.d_v = 1}, {0, 8}, {0, 8}},
          {"odd widths", {.d = 5, .d_v = 17}, {0, 8}, {0, 8}},
          {"later rows", {.T = 150, .samples = 24}, {3, 110}, {40, 110}},
          {"tiny gradients", {.gradient_scale = 1e-12}, {0, 8}, {0, 8}},
          {"huge gradients", {.gradient_scale = 1e9}, {0, 8}, {0, 8}}};
}

template <class T>
void check_loss(const LossCase& c, double tolerance) {
  INFO(c.name);
  const HeadGroup<double> exact = random_group(c.spec);
  const HeadGroup<T> group = converted<T>(exact);
  const HeadGroup<double> rounded = converted<double>(group);
  const RowRange changed{group.l + c.changed.begin, group.l + c.changed.end},
      rows{group.l + c.rows.begin, group.l + c.rows.end};
  const Change<T> change = change_of<T>(exact.v.topRows(changed.count()) * 1e-3);
  for (Index g = 0; g < group.G(); ++g) {
    const ChangeLoss want = change_loss_reference(rounded.g_future, g, rows, change.rows, changed);
    const ChangeLoss got = change_loss(group.g_future, g, rows, change.panels, changed);
    CHECK(want.row > 0);
    CHECK(got.row == Approx(want.row).epsilon(tolerance));
    CHECK(got.head == Approx(want.head).epsilon(10 * tolerance));
    REQUIRE(got.samples.size() == want.samples.size());
    double scale = 0;
    for (const double sum : want.samples) scale = std::max(scale, std::abs(sum));
    for (std::size_t s = 0; s < want.samples.size(); ++s)
      CHECK(std::abs(got.samples[s] - want.samples[s]) <= 10 * tolerance * scale);
  }
}

/// exact_loss or oracle_loss of every token, as loss_row of the kept set of all others.
template <class T>
Matrix<double> by_kept_sets(const HeadGroup<T>& group, const RowGradients<T>& gradients, RowRange rows) {
  Workers workers(1);
  std::vector<KeptSet> sets(static_cast<std::size_t>(group.l), KeptSet(static_cast<std::size_t>(group.l), 1));
  for (Index p = 0; p < group.l; ++p) sets[p][p] = 0;
  const OutputChanges<T> changes = kept_changes(group, rows, sets, true, workers);
  Matrix<double> losses = Matrix<double>::Zero(1, group.l);
  for (Index p = 0; p < group.l; ++p)
    for (Index g = 0; g < group.G(); ++g)
      losses(0, p) += change_loss(gradients, g, rows, changes.change[p][g], rows).row;
  return losses;
}

const std::vector<GroupSpec>& unkind_specs() {
  static const std::vector<GroupSpec> specs = {
      {},
      {.G = 3, .d = 5, .d_v = 7},
      {.T = 41, .G = 1, .samples = 1},
      {.attention_sink = 0},
      {.attention_sink = 17, .sink_logit = 0.5},
      {.attention_sink = 42},
      {.logit_std = 20.0},
      {.logit_shift = 200.0},
      {.logit_shift = -200.0, .sink_logit = -190.0},
      {.value_offset = 30.0},
      {.logit_std = 4.0, .softcap = 3.0},
      {.sliding_window = 12},
      {.causal = false},
      {.l = 1, .T = 3},
      {.l = 150, .T = 190, .samples = 24, .window_gradients = 40},
  };
  return specs;
}

}  // namespace

TEST_CASE("a change's loss follows its definition", "[loss]") {
  for (const LossCase& c : loss_cases()) {
    check_loss<double>(c, 1e-9);
    check_loss<float>(c, 1e-4);
  }
}

TEST_CASE("one row: the head's loss is the row's; no change costs nothing; signs and sizes square",
          "[loss]") {
  const HeadGroup<double> group = random_group({.T = 41});
  const RowRange row{40, 41};
  const Change<double> change = change_of<double>(group.v.topRows(1));
  const ChangeLoss loss = change_loss(group.g_future, 0, row, change.panels, row);
  CHECK(loss.row > 0);
  CHECK(loss.head == Approx(loss.row).epsilon(1e-14));
  const Change<double> none = change_of<double>(group.v.topRows(1) * 0);
  CHECK(change_loss(group.g_future, 0, row, none.panels, row).row == 0);
  CHECK(change_loss(group.g_future, 0, row, none.panels, row).head == 0);
  const Change<double> back = change_of<double>(group.v.topRows(1) * -3);
  CHECK(change_loss(group.g_future, 0, row, back.panels, row).row == Approx(9 * loss.row).epsilon(1e-13));
  CHECK(change_loss(group.g_nll, 0, row, back.panels, row).samples.front() ==
        Approx(-3 * change_loss(group.g_nll, 0, row, change.panels, row).samples.front()).epsilon(1e-13));
}

TEST_CASE("a loss is taken on the last rows that are measured and have gradients", "[loss]") {
  const auto same = [](RowRange a, RowRange b) {
    return a.count() == b.count() && (a.count() == 0 || a.begin == b.begin);
  };
  CHECK(same(loss_rows({10, 20}, {10, 20}), {10, 20}));
  CHECK(same(loss_rows({15, 20}, {10, 20}), {15, 20}));
  CHECK(same(loss_rows({0, 20}, {10, 20}), {10, 20}));
  CHECK(same(loss_rows({0, 30}, {10, 20}), {}));
  CHECK(same(loss_rows({10, 19}, {10, 20}), {}));  // their gradients are of labels at 19 too
  CHECK(same(loss_rows({20, 30}, {10, 20}), {}));
  CHECK(same(loss_rows({10, 20}, {}), {}));
}

TEST_CASE("a token's loss is loss_row of keeping all others", "[loss]") {
  Workers workers(1);
  for (const GroupSpec& spec : unkind_specs()) {
    INFO("l " << spec.l << ", T " << spec.T << ", logits " << spec.logit_shift << " +- " << spec.logit_std);
    const HeadGroup<double> group = random_group(spec);
    const TokenOptions options{40, false, {TokenMetric::exact_loss, TokenMetric::oracle_loss}};
    const TokenMetrics got = token_metrics_cpu(group, options, workers);
    CHECK(mismatch("exact_loss", by_kept_sets(group, group.g_window, group.g_window.rows),
                   got[TokenMetric::exact_loss], kDouble) == "");
    CHECK(mismatch("oracle_loss", by_kept_sets(group, group.g_future, group.g_future.rows),
                   got[TokenMetric::oracle_loss], kDouble) == "");
    const TokenMetrics want = token_metrics_reference(group, options);
    CHECK(mismatches("reference", want, got, kDouble) == "");
    const HeadGroup<float> single = to_float(group);
    CHECK(mismatches("float32", token_metrics_reference(to_double(single), options),
                     token_metrics_cpu(single, options, workers), kSingle) == "");
  }
}

TEST_CASE("tokens of one value that share a row cost nothing alone", "[loss]") {
  HeadGroup<double> group = random_group({.l = 20, .T = 24, .value_offset = 5});
  group.k.row(3) = group.k.row(11) *= 30;  // one of them, or the other, holds most rows
  for (HeadMatrix<double>& q : group.q) q.col(0).setConstant(group.k(3, 0) > 0 ? 20 : -20);
  group.v.row(3) = group.v.row(11);
  Workers workers(1);
  const TokenOptions options{6, false, {TokenMetric::exact_loss, TokenMetric::oracle_loss}};
  const HeadGroup<float> single = to_float(group);
  CHECK(mismatches("float32", token_metrics_reference(to_double(single), options),
                   token_metrics_cpu(single, options, workers), kSingle) == "");
  CHECK(mismatches("float64", token_metrics_reference(group, options),
                   token_metrics_cpu(group, options, workers), kDouble) == "");
}

TEST_CASE("keeping everything costs nothing", "[loss]") {
  Workers workers(1);
  const HeadGroup<float> group = to_float(random_group({.attention_sink = 2}));
  const RowRange rows = group.g_future.rows;
  const KeptSet all(static_cast<std::size_t>(group.l), 1);
  const OutputChanges<float> changes = kept_changes(group, rows, {&all, 1}, true, workers);
  for (Index g = 0; g < group.G(); ++g) {
    const ChangeLoss loss = change_loss(group.g_future, g, rows, changes.change[0][g], rows);
    CHECK(loss.row == 0);
    CHECK(loss.head == 0);
    for (const double sum : loss.samples) CHECK(sum == 0);
  }
}

TEST_CASE("a group without gradients has no losses", "[loss]") {
  Workers workers(1);
  const HeadGroup<double> group = random_group({.samples = 0});
  const TokenOptions options{
      8, false, {TokenMetric::exact_loss, TokenMetric::oracle_loss, TokenMetric::attn}};
  const TokenMetrics got = token_metrics_cpu(group, options, workers);
  CHECK(got[TokenMetric::exact_loss].size() == 0);
  CHECK(got[TokenMetric::oracle_loss].size() == 0);
  CHECK(got[TokenMetric::attn].size() == group.l);
}

TEST_CASE("the window's last rows alone have the gradients of the last rows", "[loss]") {
  Workers workers(1);
  const HeadGroup<double> group = random_group({.window_gradients = 12});
  HeadGroup<double> cut = group;
  cut.g_window.rows.begin += 8;
  for (std::size_t g = 0; g < cut.g_window.g.size(); ++g) {
    cut.g_window.g[g].resize(3 * 4, group.d_v());
    for (Index s = 0; s < 3; ++s)
      cut.g_window.g[g].middleRows(4 * s, 4) = group.g_window.g[g].middleRows(12 * s + 8, 4);
  }
  const TokenMetrics want = token_metrics_cpu(cut, {12, false, {TokenMetric::exact_loss}}, workers),
                     got = token_metrics_cpu(group, {4, false, {TokenMetric::exact_loss}}, workers);
  CHECK(mismatches("window of 4", want, got, kDouble) == "");
}
