#include "sim/attention.hpp"

#include "tests/support/cases.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/compare.hpp"

#include <cmath>
#include <limits>
#include <numeric>
#include <string>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

std::vector<Index> all_tokens(const HeadGroup<double>& group) {
  std::vector<Index> tokens(group.T_all());
  std::iota(tokens.begin(), tokens.end(), Index{0});
  return tokens;
}

double sink_of(const HeadGroup<double>& group, Index g) {
  return group.rule.sink_logit.empty() ? -std::numeric_limits<double>::infinity() : group.rule.sink_logit[g];
}

/// The textbook loop in long double: no shared maximum, nothing stacked.
Vector<double> plain_output(const HeadGroup<double>& group, Vector<double> z, const Matrix<double>& v,
                            double sink) {
  const double largest = std::max(z.maxCoeff(), sink);
  Vector<long double> sum = Vector<long double>::Zero(v.cols());
  if (std::isinf(largest)) return sum.cast<double>();
  long double total = std::exp(static_cast<long double>(sink) - largest);
  for (Index p = 0; p < group.T_all(); ++p) {
    const long double e = std::exp(static_cast<long double>(z[p]) - largest);
    total += e;
    if (e != 0) sum += e * v.row(p).transpose().cast<long double>();
  }
  return (sum / total).cast<double>();
}

/// Changes the tensors themselves, one token at a time.
Vector<double> plain_errors(const HeadGroup<double>& group, Index g, Index i, TokenChange change) {
  Vector<double> errors(group.T_all());
  const double sink = sink_of(group, g);
  const Vector<double> o = plain_output(group, attention_logits(group, g, i).z, group.v, sink);
  for (Index p = 0; p < group.T_all(); ++p) {
    HeadGroup<double> changed = group;
    if (change == TokenChange::zero_key || change == TokenChange::zero_key_and_value) {
      changed.k.row(p).setZero();
    }
    if (change == TokenChange::zero_value || change == TokenChange::zero_key_and_value) {
      changed.v.row(p).setZero();
    }
    Vector<double> z = attention_logits(changed, g, i).z;
    if (change == TokenChange::remove) z[p] = -std::numeric_limits<double>::infinity();
    errors[p] = (plain_output(changed, z, changed.v, sink) - o).squaredNorm();
  }
  return errors;
}

/// The closed form of one column, in plain double from a, z, v_p and o_i.
double closed_form(TokenChange change, double a, double z, const Vector<double>& v, const Vector<double>& o) {
  const double r = std::exp(-z);
  const double rest = 1 + a * (r - 1);
  switch (change) {
    case TokenChange::zero_value:
      return a * a * v.squaredNorm();
    case TokenChange::zero_key:
      return std::pow(a * (r - 1) / rest, 2) * (v - o).squaredNorm();
    case TokenChange::zero_key_and_value:
      return std::pow(a / rest, 2) * (v + (r - 1) * o).squaredNorm();
    case TokenChange::remove:
      return std::pow(a / (1 - a), 2) * (v - o).squaredNorm();
  }
  return 0.0;
}

constexpr TokenChange kChanges[] = {TokenChange::zero_value, TokenChange::zero_key,
                                    TokenChange::zero_key_and_value, TokenChange::remove};

}  // namespace

TEST_CASE("weights of visible tokens and the sink column add up to 1, hidden ones are 0", "[attention]") {
  for (const TokenCase& token_case : small_token_cases()) {
    INFO(token_case.name);
    const HeadGroup<double> group = token_case.group();
    for (Index g = 0; g < group.G(); ++g) {
      for (Index i = group.first_query(); i < group.T_all(); ++i) {
        const LogitRow row = attention_logits(group, g, i);
        const Vector<double> a = attention_weights(group, g, row.z);
        Index largest = 0;
        a.maxCoeff(&largest);
        double total = a.sum();
        if (!group.rule.sink_logit.empty()) {
          // the sink's own weight, by appending it as an ordinary token to a group without sink logits
          HeadGroup<double> open = group;
          open.rule.sink_logit.clear();
          Vector<double> z(row.z.size() + 1);
          z << row.z, sink_of(group, g);
          const Vector<double> all = attention_weights(open, g, z);
          total += all[row.z.size()];
          CHECK((all.head(row.z.size()) - a).norm() <= 1e-15);
        }
        bool hidden_are_zero = true;
        for (Index p = 0; p < group.T_all(); ++p) {
          const bool visible = (!group.rule.causal || p <= i) &&
                               (!group.rule.sliding_window || p > i - *group.rule.sliding_window) &&
                               (!group.rule.two_sided || p < i + *group.rule.sliding_window);
          if (!visible) hidden_are_zero = hidden_are_zero && a[p] == 0.0 && std::isinf(row.z[p]);
        }
        REQUIRE(hidden_are_zero);
        REQUIRE(std::abs(total - 1.0) <= 1e-13);
      }
    }
  }
}

TEST_CASE("brute force is what changing the tensors gives", "[attention]") {
  for (const TokenCase& token_case : small_token_cases()) {
    const HeadGroup<double> group = token_case.group();
    for (const Index i : {group.first_query(), group.T_all() - 1}) {
      for (const TokenChange change : kChanges) {
        // plain_errors subtracts outputs that were rounded to double
        const double noise = 1e-13 * attention_output(group, 0, i).norm();
        const Vector<double> want = plain_errors(group, 0, i, change);
        const Vector<double> got = brute_force_errors(group, 0, i, change, all_tokens(group));
        INFO(token_case.name << ", change " << static_cast<int>(change) << ", row " << i);
        for (Index p = 0; p < want.size(); ++p) {
          INFO("token " << p);
          REQUIRE(std::abs(std::sqrt(want[p]) - std::sqrt(got[p])) <= 1e-9 * std::sqrt(want[p]) + noise);
        }
      }
    }
  }
}

TEST_CASE("brute force agrees with the closed forms", "[attention]") {
  for (const TokenCase& token_case : small_token_cases()) {
    if (token_case.spec.softcap)
      continue;  // the forms hold for z, which a soft cap does not change; see below
    const HeadGroup<double> group = token_case.group();
    for (const Index i : {group.first_query(), group.T_all() - 1}) {
      const Vector<double> z = attention_logits(group, 0, i).z;
      const Vector<double> a = attention_weights(group, 0, z);
      const Vector<double> o = attention_output(group, 0, i);
      for (const TokenChange change : kChanges) {
        const Vector<double> got = brute_force_errors(group, 0, i, change, all_tokens(group));
        for (Index p = 0; p < group.T_all(); ++p) {
          INFO(token_case.name << ", change " << static_cast<int>(change) << ", row " << i << ", token "
                               << p);
          if (a[p] == 0.0) {
            REQUIRE(got[p] == 0.0);
            continue;
          }
          // near a = 1, and where a (r - 1) is lost beside 1 or overflows, plain double has no digits left
          if (a[p] > 0.9 || std::abs(z[p]) > 300.0) continue;
          const double want = closed_form(change, a[p], z[p], group.v.row(p).transpose(), o);
          const double noise = 1e-13 * (o.norm() + a[p] * group.v.row(p).norm());
          REQUIRE(std::abs(std::sqrt(want) - std::sqrt(got[p])) <= 1e-9 * std::sqrt(want) + noise);
        }
      }
    }
  }
}

TEST_CASE("with a soft cap the closed forms hold in the capped logit", "[attention]") {
  const HeadGroup<double> group = random_group({.logit_std = 4.0, .softcap = 3.0});
  const Index i = group.T_all() - 1;
  const LogitRow row = attention_logits(group, 1, i);
  const Vector<double> a = attention_weights(group, 1, row.z);
  const Vector<double> o = attention_output(group, 1, i);
  CHECK(row.z.cwiseAbs().maxCoeff() < 3.0);
  CHECK(row.raw.cwiseAbs().maxCoeff() > 3.0);
  for (const TokenChange change : kChanges) {
    const Vector<double> got = brute_force_errors(group, 1, i, change, all_tokens(group));
    for (Index p = 0; p <= i; ++p) {
      const double want = closed_form(change, a[p], row.z[p], group.v.row(p).transpose(), o);
      CHECK(got[p] == Approx(want).epsilon(1e-9));
    }
  }
}

TEST_CASE("a change that changes nothing is an error of exactly 0", "[attention]") {
  HeadGroup<double> group = random_group({.sink_logit = 0.3});
  group.k.row(5).setZero();
  group.v.row(6).setZero();
  group.k.row(7).setZero();
  group.v.row(7).setZero();
  const Index i = 40;
  CHECK(brute_force_errors(group, 0, i, TokenChange::zero_key, {5, 7}) == Vector<double>::Zero(2));
  CHECK(brute_force_errors(group, 0, i, TokenChange::zero_value, {6, 7}) == Vector<double>::Zero(2));
  CHECK(brute_force_errors(group, 0, i, TokenChange::zero_key_and_value, {7}) == Vector<double>::Zero(1));
  CHECK(brute_force_errors(group, 0, i, TokenChange::remove, {41, 47}) == Vector<double>::Zero(2));
  CHECK(brute_force_errors(group, 0, i, TokenChange::remove, {}).size() == 0);
}

TEST_CASE("removing a token is what a cache without it gives", "[attention]") {
  const HeadGroup<double> group = random_group({.l = 20, .T = 20, .sink_logit = 0.5});
  for (const Index p : {0, 7, 18}) {
    HeadGroup<double> without = group;
    without.l = 19;
    const auto drop = [p](HeadMatrix<double>& rows) {
      const Index below = rows.rows() - p - 1;
      rows.middleRows(p, below) = rows.bottomRows(below).eval();
      rows = rows.topRows(rows.rows() - 1);
    };
    drop(without.k);
    drop(without.v);
    for (HeadMatrix<double>& q : without.q) drop(q);
    const Vector<double> change = attention_output(without, 1, 18) - attention_output(group, 1, 19);
    CHECK(brute_force_errors(group, 1, 19, TokenChange::remove, {p})[0] ==
          Approx(change.squaredNorm()).epsilon(1e-10));
  }
}

TEST_CASE("removing the only visible token leaves no output", "[attention]") {
  const HeadGroup<double> one = random_group({.l = 1, .T = 1});
  CHECK(brute_force_errors(one, 0, 0, TokenChange::remove, {0})[0] == Approx(one.v.row(0).squaredNorm()));
  CHECK(brute_force_errors(one, 0, 0, TokenChange::zero_key, {0})[0] == 0.0);

  const HeadGroup<double> near = random_group({.sliding_window = 1});
  CHECK((attention_output(near, 0, 9) - near.v.row(9).transpose()).norm() == 0.0);
  CHECK(brute_force_errors(near, 0, 9, TokenChange::remove, {9})[0] == Approx(near.v.row(9).squaredNorm()));
  CHECK(brute_force_errors(near, 0, 9, TokenChange::remove, {8})[0] == 0.0);
}

TEST_CASE("a zero key gives the raw logit 0, not a hidden token", "[attention]") {
  // two tokens, both of logit -1 before: after the first key is zeroed its weight is e^0 / (e^0 + e^-1)
  HeadGroup<double> group;
  group.l = 2;
  group.rule.scale = 1;
  group.q = {Matrix<double>::Constant(1, 1, 1.0)};
  group.k = Matrix<double>::Constant(2, 1, -1.0);
  group.v = Matrix<double>::Zero(2, 1);
  group.v(0, 0) = 1;
  const double change = 1 / (1 + std::exp(-1.0)) - 0.5;
  CHECK(brute_force_errors(group, 0, 1, TokenChange::zero_key, {0})[0] == Approx(change * change));
}

TEST_CASE("the order and number of tokens do not matter", "[attention]") {
  const HeadGroup<double> group = random_group({.l = 200, .T = 210});
  const Vector<double> all = brute_force_errors(group, 0, 205, TokenChange::remove, all_tokens(group));
  const Vector<double> some = brute_force_errors(group, 0, 205, TokenChange::remove, {190, 3, 3, 64, 209, 0});
  const std::vector<Index> order{190, 3, 3, 64, 209, 0};
  for (Index n = 0; n < some.size(); ++n) {
    CHECK(some[n] == Approx(all[order[n]]).epsilon(1e-12));
  }
}

TEST_CASE("changes that share a row's logits are what each is alone", "[attention]") {
  for (const TokenCase& token_case : small_token_cases()) {
    INFO(token_case.name);
    const HeadGroup<double> group = token_case.group();
    const std::vector<Index> all = all_tokens(group);
    // Twice and in both directions: nothing is left over from the change before.
    std::vector<ChangedTokens> changes;
    for (const TokenChange change : kChanges) changes.push_back({change, all});
    for (int n = 3; n >= 0; --n) changes.push_back(changes[n]);
    const Index i = group.T_all() - 1;
    const std::vector<Vector<double>> together = brute_force_errors(group, group.G() - 1, i, changes);
    REQUIRE(together.size() == changes.size());
    for (std::size_t n = 0; n < changes.size(); ++n) {
      const Vector<double> alone = brute_force_errors(group, group.G() - 1, i, changes[n].change, all);
      const double largest = std::sqrt(alone.maxCoeff());
      CHECK((together[n].cwiseSqrt() - alone.cwiseSqrt()).cwiseAbs().maxCoeff() <= 1e-12 * largest);
    }
  }
}

TEST_CASE("a token beyond the others' range leaves them their weights", "[attention]") {
  for (const double logit : {3e3, 2e4, 1e6}) {
    HeadGroup<double> group = random_group({.l = 12, .T = 14});
    const Index i = 13;
    const auto query = group.q[0].row(i);
    group.k.row(4) = query * (logit / group.rule.scale / query.squaredNorm());
    for (const TokenChange change : kChanges) {
      INFO("logit " << logit << ", change " << static_cast<int>(change));
      const Vector<double> want = plain_errors(group, 0, i, change);
      CHECK(brute_force_errors(group, 0, i, change, {4, 4})[1] == Approx(want[4]).epsilon(1e-9));
      CHECK(brute_force_errors(group, 0, i, change, {4, 3})[1] == Approx(want[3]).margin(1e-20));
    }
  }
}
