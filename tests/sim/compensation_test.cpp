#include "sim/attention.hpp"
#include "sim/cache/cache_outputs.hpp"
#include "sim/compensation/compensate.hpp"
#include "sim/compensation/error_split.hpp"
#include "sim/rotation.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/index_sets.hpp"
#include "tests/support/random_group.hpp"

#include <Eigen/Dense>

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

struct Case {
  std::string name;
  GroupSpec spec;
  ReferenceOptions reference;
};

const std::vector<Case>& cases() {
  static const Rope rope = rope_of(Rope::Style::half, 8);
  static const std::vector<Case> list{
      {"shifted", {.rope = rope, .seed = 501}, {}},
      {"window", {.l = 60, .T = 66, .seed = 502}, {.kind = Reference::window, .window = 20}},
      {"window, some of its rows",
       {.l = 60, .T = 66, .seed = 503},
       {.kind = Reference::window, .window = 32, .most = 9}},
      {"three query heads, odd sizes",
       {.l = 51,
        .T = 55,
        .G = 3,
        .d = 7,
        .d_v = 5,
        .rope = rope_of(Rope::Style::interleaved, 6),
        .seed = 504},
       {}},
      {"soft cap and sink logit",
       {.logit_std = 3, .softcap = 2.0, .sink_logit = 1.0, .rope = rope, .seed = 505},
       {}},
      {"sliding window", {.l = 90, .T = 95, .sliding_window = 30, .rope = rope, .seed = 506}, {}},
      {"attention sink", {.attention_sink = 0, .rope = rope, .seed = 507}, {}},
      {"logits of 200", {.logit_std = 100, .rope = rope, .seed = 508}, {}},
      {"values far from 0", {.value_offset = 50, .rope = rope, .seed = 509}, {}},
      {"one query",
       {.l = 30, .T = 31, .T_q = 2, .G = 1, .seed = 510},
       {.kind = Reference::window, .window = 1}},
      {"second reading", {.repeat = 60, .seed = 511}, {.kind = Reference::repeat}},
      {"second reading, some of its rows, odd sizes",
       {.l = 51, .T = 55, .G = 3, .d = 7, .d_v = 5, .repeat = 70, .seed = 512},
       {.kind = Reference::repeat, .most = 41}},
      {"second reading with a sliding window and a sink logit",
       {.l = 90, .T = 95, .sliding_window = 60, .sink_logit = 1.0, .repeat = 50, .seed = 513},
       {.kind = Reference::repeat}}};
  return list;
}

QueryRows<double> rows_of(const QueryRows<double>& all, const std::vector<Index>& which) {
  QueryRows<double> some{all.q(which, Eigen::all), {}, {}};
  for (const Index r : which) {
    some.head.push_back(all.head[r]);
    some.visible.push_back(all.visible[r]);
  }
  return some;
}

/// Weights of a row over the whole prompt, from the definition.
Vector<double> weights_of(const HeadGroup<double>& group, const QueryRows<double>& rows, Index r) {
  Vector<double> z = Vector<double>::Constant(group.T_all(), -std::numeric_limits<double>::infinity());
  for (Index p = rows.visible[r].begin; p < rows.visible[r].end; ++p) {
    z[p] = group.rule.scale * rows.q.row(r).dot(group.k.row(p));
    if (group.rule.softcap) z[p] = *group.rule.softcap * std::tanh(z[p] / *group.rule.softcap);
  }
  return attention_weights(group, rows.head[r], z);
}

/// Every third of the tokens that the cache holds.
KeptSet third_of(const HeadGroup<double>& group) {
  KeptSet kept = every(group.l, 3, 1);
  std::fill_n(kept.begin(), group.first_held(), std::uint8_t{0});
  return kept;
}

double change_sq(const HeadGroup<double>& group, RowRange rows, const Compensated& held) {
  return output_change_reference(group, rows, compensated_cache(group, held)).change_sq;
}

}  // namespace

TEST_CASE("Shifted queries ask as if they stood behind the prompt", "[compensation]") {
  for (const auto style : {Rope::Style::half, Rope::Style::interleaved}) {
    HeadGroup<double> group =
        random_group({.l = 150, .T = 150, .rope = rope_of(style, 6, 10000.0, 1.2), .seed = 1});
    const QueryRows<double> rows = reference_queries(group, {});
    REQUIRE(rows.count() == group.G() * 150);
    for (const Index i : {0, 1, 63, 64, 149}) {
      const Index to = 150 + i % 64;
      const double angle = static_cast<double>(to - i) * group.rope->inv_freq[1];
      const auto [a, b] = rotated_pair(*group.rope, 1);
      const std::complex<double> before(group.q[1](i, a), group.q[1](i, b)),
          after(rows.q(150 + i, a), rows.q(150 + i, b));
      CHECK(std::abs(after - before * std::polar(1.0, angle)) <= 1e-12);
      CHECK(rows.q(150 + i, 7) == group.q[1](i, 7));  // beyond the rotation
      CHECK(rows.visible[i].begin == 0);
      CHECK(rows.visible[i].end == 150);
      CHECK(rows.head[150 + i] == 1);
    }
  }
}

TEST_CASE("Reference rows' weights, masses and outputs are those of the definition", "[compensation]") {
  Workers workers(2);
  for (const Case& c : cases()) {
    INFO(c.name);
    const HeadGroup<double> group = random_group(c.spec);
    const HeadGroup<float> narrow = to_float(group);
    QueryRows<double> rows = reference_queries(group, c.reference);
    const RowRange seen{group.first_query(), group.T_all()};
    for (const QueryRows<double>& all : {rows, own_rows(group, seen)}) {
      const RowLogits<double> found = row_logits(group, all, workers);
      const KeptWeights kept = kept_weights(found, 0, all.count(), range(0, group.l), Vector<double>());
      for (Index r = 0; r < all.count(); ++r) {
        const Vector<double> a = weights_of(group, all, r);
        const double mass = a.head(group.l).sum();
        INFO("row " << r << " of " << all.count());
        CHECK(std::abs(found.prompt_mass[r] - mass) <= 1e-12);
        CHECK((found.prompt_out.row(r) - a.head(group.l).transpose() * group.v.topRows(group.l)).norm() <=
              1e-11 * group.v.norm());
        CHECK((found.rest_out.row(r) -
               a.tail(group.T_all() - group.l).transpose() * group.v.bottomRows(group.T_all() - group.l))
                  .norm() <= 1e-11 * group.v.norm());
        CHECK((kept.e.row(r).transpose() * kept.unscale[r] - a.head(group.l)).norm() <= 1e-11);
      }
    }
    const QueryRows<float> few = reference_queries(narrow, c.reference);
    const RowLogits<float> single = row_logits(narrow, few, workers);
    const RowLogits<double> wide = row_logits(group, rows, workers);
    CHECK((single.prompt_out - wide.prompt_out).norm() <= 2e-4 * wide.prompt_out.norm());
  }
}

TEST_CASE("What is fitted is what brute force fits", "[compensation]") {
  Workers workers(2);
  for (const Case& c : cases())
    for (const auto method : {Compensation::mass, Compensation::values, Compensation::fit})
      for (const double ridge : {1e-2, 1.0}) {
        INFO(c.name << ", " << name_of(method) << ", " << ridge);
        const HeadGroup<double> group = random_group(c.spec);
        const ReferenceRows<double> reference = reference_rows(group, c.reference, workers);
        const QueryRows<double> all = reference_queries(group, c.reference);
        const KeptSet kept = third_of(group);
        const Compensated found = compensated(group, kept, method, &reference, workers, {ridge, ridge}),
                          want = compensated_reference(group, kept, method, all, ridge, ridge);
        REQUIRE(found.tokens == want.tokens);
        REQUIRE(found.bias.size() == want.bias.size());
        if (want.bias.size() > 0) CHECK((found.bias - want.bias).cwiseAbs().maxCoeff() <= 1e-6);
        CHECK((found.values - want.values).norm() <= 1e-6 * want.values.norm());

        const HeadGroup<float> narrow = to_float(group);
        const ReferenceRows<float> single = reference_rows(narrow, c.reference, workers);
        const Compensated rounded = compensated(narrow, kept, method, &single, workers, {ridge, ridge});
        if (c.spec.logit_std < 50) CHECK((rounded.values - want.values).norm() <= 1e-2 * want.values.norm());
      }
}

TEST_CASE("Fitted values solve their normal equations", "[compensation]") {
  Workers workers(1);
  const Case& c = cases().front();
  const HeadGroup<double> group = random_group(c.spec);
  const QueryRows<double> all = reference_queries(group, c.reference);
  const KeptSet kept = every(group.l, 4, 1);
  const ReferenceRows<double> reference = reference_rows(group, c.reference, workers);
  const Compensated held = compensated(group, kept, Compensation::values, &reference, workers);
  Matrix<double> X(all.count(), std::ssize(held.tokens)), Y(all.count(), group.d_v());
  for (Index r = 0; r < all.count(); ++r) {
    const Vector<double> a = weights_of(group, all, r);
    Y.row(r) = a.transpose() * group.v;
    const Vector<double> left = a(held.tokens);
    X.row(r) = left.transpose() / left.sum();
  }
  const Matrix<double> own = group.v(held.tokens, Eigen::all), D = held.values - own;
  const Matrix<double> A = X.transpose() * X;
  const double mu = held.mu * A.diagonal().mean();
  const Matrix<double> right = X.transpose() * (Y - X * own);
  CHECK((A * D + mu * D - right).norm() <= 1e-9 * right.norm());
  CHECK(std::find(kRidges.begin(), kRidges.end(), held.mu) != kRidges.end());
  CHECK((Y - X * held.values).squaredNorm() <= (Y - X * own).squaredNorm());
}

TEST_CASE("A cache that keeps everything is as it was, whatever compensates", "[compensation]") {
  Workers workers(1);
  for (const Case& c : cases()) {
    const HeadGroup<double> group = random_group(c.spec);
    const ReferenceRows<double> reference = reference_rows(group, c.reference, workers);
    for (const Compensation method : kCompensations.all()) {
      INFO(c.name << ", " << name_of(method));
      const Compensated held = compensated(group, every(group.l, 1, 0), method, &reference, workers);
      const CacheOutputs<double> outputs(group, {group.first_query(), group.T_all()}, workers);
      CHECK(outputs.change(compensated_cache(group, held), false).change_sq == 0);
    }
  }
}

TEST_CASE("As many rows as tokens and no ridge fit exactly", "[compensation]") {
  Workers workers(1);
  const HeadGroup<double> group = random_group(
      {.l = 24, .T = 24, .G = 1, .logit_std = 3, .rope = rope_of(Rope::Style::half, 8), .seed = 3});
  const ReferenceRows<double> reference = reference_rows(group, {}, workers);
  const KeptSet kept = every(group.l, 2, 0);  // 12 tokens
  const QueryRows<double> all = reference_queries(group, {});
  const ReferenceRows<double> twelve{row_logits(group, rows_of(all, range(0, 24, 2)), workers), {}};
  REQUIRE(twelve.held_out.n == 0);
  const Compensated held = compensated(group, kept, Compensation::values, &twelve, workers, {{}, 1e-13});
  const ErrorSplit split = error_split(twelve, group, held, workers);
  CHECK(split.change_sq <= 1e-9 * split.full_sq);
  CHECK(std::isnan(split.bound));  // of no more rows than tokens it would be 0, and say nothing
  CHECK(error_split(reference, group, held, workers).change_sq > 1e-6 * split.full_sq);
}

TEST_CASE("Tokens that are all alike are replaced by one without a loss", "[compensation]") {
  Workers workers(1);
  HeadGroup<double> group = random_group({.seed = 4});
  for (Index p = 10; p < 30; ++p) {
    group.k.row(p) = group.k.row(10);
    group.v.row(p) = group.v.row(10);
  }
  KeptSet kept(static_cast<std::size_t>(group.l), 1);
  for (Index p = 10; p < 30; ++p) kept[p] = 0;
  const Compensated held = compensated<double>(group, kept, Compensation::mean, nullptr, workers);
  CHECK(std::ssize(held.tokens) == count(kept) + 1);
  CHECK(held.bias.maxCoeff() == Approx(std::log(20)));
  const RowRange future{group.l, group.T_all()};
  CHECK(change_sq(group, future, held) <= 1e-24 * group.v.squaredNorm());
  kept[11] = 1;
  CHECK(change_sq(group, future, compensated<double>(group, kept, Compensation::mean, nullptr, workers)) <=
        1e-24 * group.v.squaredNorm());
}

TEST_CASE("An empty kept set stays empty, and one token is fitted", "[compensation]") {
  Workers workers(1);
  const HeadGroup<double> group = random_group({.rope = rope_of(Rope::Style::half, 8), .seed = 5});
  const ReferenceRows<double> reference = reference_rows(group, {}, workers);
  const KeptSet none(static_cast<std::size_t>(group.l), 0);
  const RowRange future{group.l, group.T_all()};
  for (const Compensation method : kCompensations.all()) {
    const Compensated held = compensated(group, none, method, &reference, workers);
    CHECK(std::ssize(held.tokens) == (kCompensations[method].slot ? 1 : 0));
    CHECK(std::isfinite(change_sq(group, future, held)));
    CHECK(error_split(reference, group, compensated(group, none, Compensation::none, &reference, workers),
                      workers)
              .values == 0);
    KeptSet one = none;
    one[7] = 1;
    const Compensated single = compensated(group, one, method, &reference, workers);
    CHECK(single.values.allFinite());
    CHECK(std::isfinite(change_sq(group, future, single)));
  }
}

TEST_CASE("The terms of an error are those of the definition and add up to it", "[compensation]") {
  Workers workers(2);
  for (const Case& c : cases()) {
    const HeadGroup<double> group = random_group(c.spec);
    const ReferenceRows<double> reference = reference_rows(group, c.reference, workers);
    // Rows of the prompt also see positions that left a window.
    const RowRange rows{group.first_held() > 0 ? group.l : group.first_query(), group.T_all()};
    const QueryRows<double> own = own_rows(group, rows);
    const RowLogits<double> logits = row_logits(group, own, workers);
    for (const auto method :
         {Compensation::none, Compensation::mass, Compensation::values, Compensation::fit}) {
      INFO(c.name << ", " << name_of(method));
      const Compensated held = compensated(group, third_of(group), method, &reference, workers);
      const ErrorSplit split = error_split(logits, group, held, workers);
      const OutputChangeReference judged =
          output_change_reference(group, rows, compensated_cache(group, held));
      CHECK(split.full_sq == Approx(judged.full_sq).epsilon(1e-9));
      CHECK(split.change_sq == Approx(judged.change_sq).epsilon(1e-7).margin(1e-18 * judged.full_sq));
      // selection, by brute force: the kept weights as they are, scaled to the whole prompt's mass.
      double selection = 0;
      for (Index r = 0; r < own.count(); ++r) {
        Vector<double> a = weights_of(group, own, r), kept = Vector<double>::Zero(a.size());
        for (const Index p : held.tokens) kept[p] = a[p];
        if (kept.sum() > 0) kept *= a.head(group.l).sum() / kept.sum();
        kept.tail(group.T_all() - group.l) = a.tail(group.T_all() - group.l);
        selection += (group.v.transpose() * (kept - a)).squaredNorm();
      }
      if (c.spec.logit_std < 50) CHECK(split.selection == Approx(selection).epsilon(1e-6));
      // Of the running sums each is the change of a cache of its own.
      Compensated step = compensated<double>(group, third_of(group), Compensation::none, nullptr, workers);
      const double least = 1e-18 * judged.full_sq;
      CHECK(split.plain == Approx(change_sq(group, rows, step)).epsilon(1e-7).margin(least));
      step.bias = held.bias;
      CHECK(split.weighted == Approx(change_sq(group, rows, step)).epsilon(1e-7).margin(least));
      if (held.bias.size() == 0) CHECK(split.weighted == split.plain);
      const double rounding = 1e-9 * std::sqrt(split.full_sq + split.change_sq);
      CHECK(std::sqrt(split.change_sq) <=
            std::sqrt(split.selection) + std::sqrt(split.mass) + std::sqrt(split.values) + rounding);
      if (!kCompensations[method].fits_values) CHECK(split.values == 0);
      if (std::ssize(held.tokens) < own.count()) CHECK(split.bound <= split.change_sq);
      CHECK(std::isnan(split.bound) == (own.count() <= std::ssize(held.tokens)));
    }
  }
}

TEST_CASE("The bound is the least squares solution on the rows measured", "[compensation]") {
  Workers workers(1);
  const HeadGroup<double> group =
      random_group({.l = 30, .T = 70, .rope = rope_of(Rope::Style::half, 8), .seed = 6});
  const RowRange future{30, 70};
  const RowLogits<double> logits = row_logits(group, own_rows(group, future), workers);
  const Compensated held = compensated<double>(group, every(30, 3, 0), Compensation::none, nullptr, workers);
  const QueryRows<double> own = own_rows(group, future);
  Matrix<double> X(own.count(), 10), R(own.count(), group.d_v());
  for (Index r = 0; r < own.count(); ++r) {
    const Vector<double> a = weights_of(group, own, r);
    const double left = a(held.tokens).sum() + a.tail(40).sum();
    X.row(r) = a(held.tokens).transpose() / left;
    R.row(r) = a.transpose() * group.v - a.tail(40).transpose() * group.v.bottomRows(40) / left;
  }
  const double want = (R - X * X.colPivHouseholderQr().solve(R)).squaredNorm();
  CHECK(error_split(logits, group, held, workers).bound == Approx(want).epsilon(1e-6));
}

TEST_CASE("Compensation has the same bytes with any number of threads", "[compensation]") {
  const HeadGroup<float> group =
      to_float(random_group({.l = 300, .T = 310, .G = 3, .rope = rope_of(Rope::Style::half, 8), .seed = 7}));
  std::vector<Compensated> found;
  for (const int threads : {1, 3}) {
    Workers workers(threads);
    const ReferenceRows<float> reference = reference_rows(group, {}, workers);
    found.push_back(compensated(group, every(300, 5, 0), Compensation::fit, &reference, workers));
  }
  CHECK(found[0].values == found[1].values);
  CHECK(found[0].bias == found[1].bias);
}
