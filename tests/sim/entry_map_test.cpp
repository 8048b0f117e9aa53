#include "sim/tokens/entry_map.hpp"

#include "data/error.hpp"
#include "sim/head_group.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/compare.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

template <class T>
EntryMap<T> map_of(HeadGroup<T> group) {
  Workers workers(1);
  return {std::make_shared<const HeadGroup<T>>(std::move(group)), workers};
}

template <class T>
RowRange all_rows(const HeadGroup<T>& group) {
  return {group.first_query(), group.T_all()};
}

/// Entries of the rows first, first + step, .. and the positions [begin, end).
template <class T>
Matrix<T> entries(const EntryMap<T>& map, Index g, EntryTerm entry, RowRange rows, Index begin, Index end,
                  Index step = 1, int threads = 1) {
  Workers workers(threads);
  const EntryRows<T> of = map.rows(g, rows, workers, step);
  Matrix<T> out(of.count(), end - begin);
  map.entries(of, entry, rows, begin, end, out.data());
  return out;
}

template <class T>
bool same(const Matrix<T>& a, const Matrix<T>& b) {
  return a.rows() == b.rows() && a.cols() == b.cols() &&
         (a.size() == 0 ||
          std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size()) * sizeof(T)) == 0);
}

/// Every token, or about 40 of many: the first and last ones and some in between.
std::vector<Index> sampled(Index n) {
  std::vector<Index> tokens;
  for (Index p = 0; p < n; ++p)
    if (n <= 60 || p < 3 || p >= n - 5 || p % (n / 32) == 1) tokens.push_back(p);
  return tokens;
}

/// The reference forms weights in long double: where one is near 1, another's change below 1e-12 has lost the
/// digits that are compared.
constexpr Tolerance kEntryDouble{1e-9, 1e-6, 1e-12, 1e-24};
/// Logits near 0 are sums that cancel: they are known as well as the largest.
constexpr Tolerance kSingleLogit{1e-6, 1e-3, 1e-3};

/// One line for each entry that misses; empty where the twins agree. Hidden tokens must be the same ones, and
/// are then compared as 0.
template <class T>
std::string mismatches(const std::string& name, const HeadGroup<T>& group, const Tolerance& tolerance) {
  const HeadGroup<double> wide = [&] {
    if constexpr (sizeof(T) == 4) return to_double(group);
    if constexpr (sizeof(T) == 8) return group;
  }();
  const EntryMap<T> map = map_of(group);
  const std::vector<Index> tokens = sampled(group.T_all()), rows = sampled(group.T_q());
  std::string lines;
  for (const EntryTerm entry : kEntries.all()) {
    for (Index g = 0; g < group.G(); ++g) {
      const Matrix<T> all = entries(map, g, entry, all_rows(group), 0, group.T_all());
      Matrix<double> want(std::ssize(rows), std::ssize(tokens)), got = want;
      for (Index r = 0; r < want.rows(); ++r) {
        const Index row = rows[r], i = group.first_query() + row;
        const std::vector<double> reference = entries_reference(wide, g, i, entry, tokens);
        for (Index t = 0; t < want.cols(); ++t) {
          const Index p = tokens[t];
          const bool hidden = p < group.first_visible(i) || p >= group.end_visible(i);
          want(r, t) = reference[t];
          got(r, t) = static_cast<double>(all(row, p));
          if (hidden != std::isnan(want(r, t)) || hidden != std::isnan(got(r, t)))
            lines += fmt::format("\n{}: {}, head {}: row {}, token {} hidden {}, but want {}, got {}", name,
                                 name_of(entry), g, i, p, hidden, want(r, t), got(r, t));
          if (hidden) want(r, t) = got(r, t) = 0;
        }
      }
      const std::string line =
          mismatch(fmt::format("{}: {}, head {}", name, name_of(entry), g), want, got,
                   sizeof(T) == 4 && entry == EntryTerm::logit ? kSingleLogit : tolerance);
      if (!line.empty()) lines += "\n" + line;
    }
  }
  return lines;
}

}  // namespace

TEST_CASE("float64 entries agree with the reference on small cases", "[entry_map]") {
  for (const TokenCase& token_case : small_token_cases())
    CHECK(mismatches(token_case.name, token_case.group(), kEntryDouble) == "");
}

TEST_CASE("float32 entries agree with the reference on small cases", "[entry_map]") {
  for (const TokenCase& token_case : small_token_cases())
    CHECK(mismatches(token_case.name + ", float32", to_float(token_case.group()), kSingle) == "");
}

TEST_CASE("entries agree with the reference across tile edges", "[entry_map]") {
  for (const TokenCase& token_case : large_token_cases()) {
    CHECK(mismatches(token_case.name, token_case.group(), kEntryDouble) == "");
    CHECK(mismatches(token_case.name + ", float32", to_float(token_case.group()), kSingle) == "");
  }
}

TEST_CASE("entries of a cache with gaps agree with the reference", "[entry_map]") {
  const HeadGroup<double> whole = random_group({.l = 20, .T = 36, .G = 3, .sliding_window = 12, .seed = 7});
  std::vector<Index> tokens = {0, 2, 3, 7, 8, 9, 12, 13, 15, 17, 18, 19};
  for (Index p = 20; p < 36; ++p) tokens.push_back(p);
  const HeadGroup<double> group = cache_group(whole, tokens, 18);
  CHECK(mismatches("a cache of a cache", group, kEntryDouble) == "");
  const EntryMap<double> map = map_of(group);
  const RowRange rows = all_rows(group);
  const Matrix<double> all = entries(map, 1, EntryTerm::joint, rows, 0, group.T_all());
  const Matrix<double> third = entries(map, 1, EntryTerm::joint, rows, 0, group.T_all(), 3);
  for (Index r = 0; r < third.rows(); ++r)
    CHECK(same(Matrix<double>(third.row(r)), Matrix<double>(all.row(3 * r))));
}

TEST_CASE("entries summed over rows and heads are the token metrics", "[entry_map]") {
  std::vector<TokenCase> cases = small_token_cases();
  cases.insert(cases.end(), large_token_cases().begin(), large_token_cases().end());
  for (const TokenCase& token_case : cases) {
    const HeadGroup<double> group = token_case.group();
    const RowRange rows = window_rows(group.l, group.first_query(), token_case.options.window);
    if (rows.count() == 0) continue;
    Workers workers(1);
    TokenOptions options = token_case.options;
    options.per_query_head = false;
    const TokenMetrics want = token_metrics_cpu(group, options, workers);
    const EntryMap<double> map = map_of(group);
    for (const EntryTerm entry : kEntries.all()) {
      if (!kEntries[entry].metric) continue;
      Matrix<double> got = Matrix<double>::Zero(1, group.l);
      for (Index g = 0; g < group.G(); ++g) {
        const Matrix<double> terms = entries(map, g, entry, rows, 0, group.l);
        for (Index r = 0; r < terms.rows(); ++r)
          for (Index p = 0; p < group.l; ++p)
            if (!std::isnan(terms(r, p))) got(0, p) += terms(r, p);
      }
      // Terms far below the largest may have cancelled in the metrics' sums over a tile.
      CHECK(mismatch(token_case.name + ", " + std::string(name_of(entry)), want[*kEntries[entry].metric], got,
                     {1e-10, 1e-8, 1e-6, 1e-290}) == "");
    }
  }
}

namespace {

template <class T>
void check_rectangles(const TokenCase& token_case, const HeadGroup<T>& group) {
  const EntryMap<T> map = map_of(group);
  const Index first = group.first_query(), total = group.T_all(), n = group.T_q(), g = group.G() - 1;
  struct Part {
    RowRange rows;
    Index step, begin, end;
    int threads;
  };
  const std::vector<Part> parts = {
      {{first + n / 2, first + n / 2 + 1}, 1, 0, total, 1},
      {{first + n / 3, total}, 1, total / 3, total / 2, 2},
      {{first, total}, 5, 1, total, 3},
      {{first + 1, total}, 40, 0, total, 1},
      {{first, total}, 1, total - 1, total, 2},
      {{first + n / 5, first + n / 2}, 3, total / 4, total, 1},
  };
  for (const EntryTerm entry : kEntries.all()) {
    const Matrix<T> all = entries(map, g, entry, {first, total}, 0, total);
    for (std::size_t part = 0; part < parts.size(); ++part) {
      const auto& [rows, step, begin, end, threads] = parts[part];
      if (rows.count() == 0) continue;
      Matrix<T> want((rows.count() + step - 1) / step, end - begin);
      for (Index r = 0; r < want.rows(); ++r)
        want.row(r) = all.row(rows.begin - first + r * step).segment(begin, end - begin);
      INFO(token_case.name << ", " << name_of(entry) << ", part " << part << ", " << sizeof(T) << " bytes");
      CHECK(same(want, entries(map, g, entry, rows, begin, end, step, threads)));
    }
    // Some of the rows that are held.
    Workers workers(1);
    const EntryRows<T> held = map.rows(g, {first, total}, workers, 2);
    const RowRange take{first + 1, first + n / 2 + 2};
    Matrix<T> some(0, total);
    for (Index i = take.begin; i < std::min(take.end, total); ++i) {
      if ((i - first) % 2 != 0) continue;
      some.conservativeResize(some.rows() + 1, total);
      some.row(some.rows() - 1) = all.row(i - first);
    }
    Matrix<T> got(some.rows(), total);
    map.entries(held, entry, take, 0, total, got.data());
    CHECK(same(some, got));
  }
}

}  // namespace

TEST_CASE("an entry has the same bytes in every rectangle", "[entry_map]") {
  for (const TokenCase& token_case : small_token_cases()) {
    check_rectangles(token_case, to_float(token_case.group()));
    check_rectangles(token_case, token_case.group());
  }
  for (const TokenCase& token_case : large_token_cases())
    check_rectangles(token_case, to_float(token_case.group()));
}

// Weights 1/2 each, v = (3, -1), o = 1: v - o = (2, -2). Logit 0: zeroing the key changes nothing.
TEST_CASE("entries of two equal tokens", "[entry_map]") {
  HeadGroup<double> group;
  group.l = 2;
  group.rule.scale = 1;
  group.k = Matrix<double>::Zero(2, 1);
  group.v.resize(2, 1);
  group.v << 3, -1;
  group.q = {Matrix<double>::Ones(2, 1)};
  const EntryMap<double> map = map_of(group);
  const auto row = [&](EntryTerm entry) { return entries(map, 0, entry, {1, 2}, 0, 2); };
  CHECK(row(EntryTerm::logit) == (Matrix<double>(1, 2) << 0, 0).finished());
  CHECK(row(EntryTerm::attn).isApprox((Matrix<double>(1, 2) << 0.5, 0.5).finished()));
  CHECK(row(EntryTerm::attn_sq).isApprox((Matrix<double>(1, 2) << 0.25, 0.25).finished()));
  CHECK(row(EntryTerm::value).isApprox((Matrix<double>(1, 2) << 2.25, 0.25).finished()));
  CHECK(row(EntryTerm::exact_value).isApprox((Matrix<double>(1, 2) << 2.25, 0.25).finished()));
  CHECK(row(EntryTerm::key).isZero(1e-20));
  CHECK(row(EntryTerm::exact_key).isZero(1e-20));
  CHECK(row(EntryTerm::joint).isApprox((Matrix<double>(1, 2) << 2.25, 0.25).finished()));
  CHECK(row(EntryTerm::exact_joint).isApprox((Matrix<double>(1, 2) << 2.25, 0.25).finished()));
  CHECK(row(EntryTerm::exact_remove).isApprox((Matrix<double>(1, 2) << 4, 4).finished()));
  const Matrix<double> first = entries(map, 0, EntryTerm::exact_remove, {0, 1}, 0, 2);
  CHECK(first(0, 0) == Approx(9));  // alone: nothing is left of the output
  CHECK(std::isnan(first(0, 1)));
}

namespace {

/// One query head of which the first `copies` tokens have the same key and value and lead all others by about
/// `lead` nats.
HeadGroup<double> led_by_copies(Index l, Index copies, double lead) {
  HeadGroup<double> group =
      random_group({.l = l, .T = l, .G = 1, .d = 16, .d_v = 16, .logit_std = 0.3, .seed = 5});
  group.q[0].col(0).setConstant(1 / group.rule.scale);
  group.k.col(0).setZero();
  group.k(0, 0) = lead;
  for (Index p = 1; p < copies; ++p) {
    group.k.row(p) = group.k.row(0);
    group.v.row(p) = group.v.row(0);
  }
  return group;
}

}  // namespace

TEST_CASE("entries of repeated tokens that hold a row together keep their digits", "[entry_map]") {
  CHECK(mismatches("copies lead by 5, float32", to_float(led_by_copies(130, 40, 5)), kSingle) == "");
  for (const double lead : {5.0, 8.0, 12.0})
    CHECK(mismatches(fmt::format("copies lead by {}", lead), led_by_copies(130, 40, lead), kEntryDouble) ==
          "");
}

// One channel: v + z (v - o) and a v + c o often nearly vanish, and little is hidden behind larger entries.
TEST_CASE("entries whose terms cancel keep their digits", "[entry_map]") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const HeadGroup<double> group =
        random_group({.l = 6, .T = 8, .G = 1, .d = 4, .d_v = 1, .causal = false, .seed = seed});
    CHECK(mismatches(fmt::format("seed {}", seed), group, kEntryDouble) == "");
    CHECK(mismatches(fmt::format("seed {}, float32", seed), to_float(group), kSingle) == "");
  }
}

TEST_CASE("entries of equal, of zero and of opposite values", "[entry_map]") {
  HeadGroup<double> group = random_group({.l = 40, .T = 44, .seed = 8});
  group.v.setConstant(2.5);
  // Errors of 0 are roundings of 1e-31 in the reference.
  CHECK(mismatches("equal values", group, {1e-9, 1e-6, 1e-12, 1e-28}) == "");
  CHECK(mismatches("equal values, float32", to_float(group), kSingle) == "");
  group.v.setZero();
  CHECK(mismatches("no values", group, kEntryDouble) == "");
  CHECK(mismatches("no values, float32", to_float(group), kSingle) == "");
  group = random_group({.l = 40, .T = 44, .seed = 9});
  for (Index p = 0; p + 1 < 44; p += 2) group.v.row(p + 1) = -group.v.row(p);
  CHECK(mismatches("opposite values", group, kEntryDouble) == "");
  CHECK(mismatches("opposite values, float32", to_float(group), kSingle) == "");
}

TEST_CASE("logits and outputs beyond the type are an input error, lone entries infinite", "[entry_map]") {
  const auto scaled = [&](double queries, double values) {
    HeadGroup<double> group = random_group({.l = 20, .T = 24});
    for (HeadMatrix<double>& q : group.q) q *= queries;
    group.k *= queries;
    group.v *= values;
    return map_of(to_float(group));
  };
  const auto joint = [](const EntryMap<float>& map) {
    return entries(map, 0, EntryTerm::joint, {0, 24}, 0, 24);
  };
  CHECK_NOTHROW(joint(scaled(1, 1)));
  CHECK_THROWS_AS(joint(scaled(1e20, 1)), InputError);
  CHECK_THROWS_AS(joint(scaled(1, 1e25)), InputError);

  HeadGroup<double> group = random_group({.l = 20, .T = 24});
  group.v.row(5).setConstant(1e25);            // beyond float32 when squared
  group.k.row(5) = -100 * group.q[0].row(23);  // and next to no weight in row 23
  const EntryMap<float> map = map_of(to_float(group));
  for (const EntryTerm entry : kEntries.all()) {
    INFO(name_of(entry));
    const Matrix<float> row = entries(map, 0, entry, {23, 24}, 0, 24);
    CHECK(row.array().isNaN().count() == 0);
  }
}

TEST_CASE("rows and tokens that a map does not have are refused, none are none", "[entry_map]") {
  const EntryMap<double> map = map_of(random_group({.l = 20, .T = 24, .T_q = 10}));
  Workers workers(1);
  CHECK_THROWS_AS(map.rows(0, {13, 24}, workers), std::invalid_argument);
  CHECK_THROWS_AS(map.rows(0, {14, 25}, workers), std::invalid_argument);
  CHECK_THROWS_AS(map.rows(2, {14, 24}, workers), std::invalid_argument);
  CHECK_THROWS_AS(map.rows(-1, {14, 24}, workers), std::invalid_argument);
  CHECK_THROWS_AS(map.rows(0, {14, 24}, workers, 0), std::invalid_argument);
  const EntryRows<double> of = map.rows(0, {16, 20}, workers);
  double out[8 * 24];
  CHECK_THROWS_AS(map.entries(of, EntryTerm::attn, {16, 20}, 0, 25, out), std::invalid_argument);
  CHECK_THROWS_AS(map.entries(of, EntryTerm::attn, {16, 20}, -1, 24, out), std::invalid_argument);
  CHECK(map.rows(0, {20, 20}, workers).count() == 0);
  out[0] = 7;
  map.entries(of, EntryTerm::attn, {16, 20}, 5, 5, out);
  map.entries(of, EntryTerm::attn, {20, 24}, 0, 24, out);  // held are others
  map.entries(map.rows(0, {20, 20}, workers), EntryTerm::attn, {16, 20}, 0, 24, out);
  CHECK(out[0] == 7);
  CHECK(of.bytes() > 4 * 8 * sizeof(double));
  workers.stop();
  CHECK_THROWS_AS(map.rows(0, {16, 20}, workers), Interrupted);
}

TEST_CASE("entries have the names of their metrics", "[entry_map]") {
  std::set<std::string> names;
  for (const EntryTerm entry : kEntries.all()) {
    names.insert(std::string(name_of(entry)));
    CHECK(kEntries.named(name_of(entry)) == entry);
    if (kEntries[entry].metric) CHECK(name_of(*kEntries[entry].metric) == name_of(entry));
  }
  CHECK(names == std::set<std::string>{"logit", "attn", "attn_sq", "value", "key", "joint", "exact_value",
                                       "exact_key", "exact_joint", "exact_remove"});
  CHECK(!kEntries[EntryTerm::logit].metric);
  CHECK(!kEntries.named("Attn"));
  CHECK(!kEntries.named("caote"));
}
