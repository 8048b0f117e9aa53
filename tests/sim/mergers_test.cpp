#include "sim/compensation/mergers.hpp"

#include "data/npy_array.hpp"
#include "data/npz.hpp"
#include "sim/attention.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/places.hpp"
#include "tests/support/random_group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

struct Case {
  Merging method;
  Semantics semantics;
  std::string label() const { return fmt::format("{}, {}", name_of(method), name_of(semantics)); }
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const Merging method : kMergings.all())
    for (const Semantics semantics : kSemantics.all())
      if (has_semantics(method, semantics)) cases.push_back({method, semantics});
  return cases;
}

/// Keys that lean one way, so that cosines are large; odd d and d_v.
HeadGroup<double> leaning_group(Index l = 41, double lean = 2.0) {
  HeadGroup<double> group = random_group({.l = l, .T = l + 3, .G = 2, .d = 7, .d_v = 5, .value_offset = 0.5});
  for (Index c = 0; c < group.d(); ++c) group.k.col(c).array() += c % 2 == 0 ? lean : -lean;
  return group;
}

KeptSet every(Index l, Index step) {
  KeptSet kept(l, 0);
  for (Index p = step - 1; p < l; p += step) kept[p] = 1;
  return kept;
}

MergedCache merged(const HeadGroup<double>& group, const KeptSet& kept, const Case& what,
                   const MergingOptions& options = {}) {
  return merged_cache(group, kept, what.method, what.semantics, window_attention(group, 32), options);
}

Matrix<double> rows_of(const Matrix<double>& x, const KeptSet& kept) {
  Matrix<double> rows(count(kept), x.cols());
  Index n = 0;
  for (const Index p : positions(kept)) rows.row(n++) = x.row(p);
  return rows;
}

double votes(const MergedCache& cache, const KeptSet& kept) {
  double sum = 0;
  for (const Index p : positions(kept)) sum += std::exp(cache.bias[p]);
  return sum;
}

/// A group of these keys and values, all of them prompt, with one query of zeros a row.
HeadGroup<double> group_of(const Matrix<double>& k, const Matrix<double>& v) {
  HeadGroup<double> group;
  group.l = k.rows();
  group.rule.scale = 1;
  group.q.emplace_back(Matrix<double>(Matrix<double>::Zero(k.rows(), k.cols())));
  group.k = k;
  group.v = v;
  return group;
}

/// Attention that says so.
WindowAttention attention_of(std::initializer_list<double> a) {
  WindowAttention attention{Vector<double>(a.size()), Vector<double>(a.size())};
  Index p = 0;
  for (const double x : a) {
    attention.a[p] = x;
    attention.log_s[p++] = std::log(x);
  }
  return attention;
}

Matrix<double> matrix(std::initializer_list<std::initializer_list<double>> rows) {
  return Matrix<double>(rows);
}

constexpr double kHidden = -std::numeric_limits<double>::infinity();

/// Attention of the last prompt row over the kept tokens as they were merged.
Vector<double> merged_output(const HeadGroup<double>& group, const KeptSet& kept, const MergedCache& cache) {
  Vector<double> z = attention_logits(group, 0, group.l - 1,
                                      [&] {
                                        Matrix<double> k = group.k;
                                        k.topRows(group.l) = cache.k;
                                        return k;
                                      }())
                         .z;
  for (Index p = 0; p < group.T_all(); ++p) {
    if (p < group.l && kept[p] == 0) z[p] = kHidden;
    if (p < group.l) z[p] += cache.bias[p];
  }
  const Vector<double> a = attention_weights(group, 0, z);
  return cache.v.transpose() * a.head(group.l);
}

}  // namespace

TEST_CASE("every merging has a semantics and says what it needs", "[mergers]") {
  CHECK(kMergings.names() == std::vector<std::string>{"cam", "d2o", "kvmerger", "keepkv", "merging_press"});
  for (const MergingFacts& facts : kMergings) {
    INFO(facts.name);
    CHECK((facts.paper || facts.official || facts.kvpress));
    CHECK_FALSE(facts.meaning.empty());
    CHECK_FALSE(facts.source.empty());
  }
  CHECK(all_cases().size() == 9);
}

TEST_CASE("a cache of everything is left as it was", "[mergers]") {
  for (const Index l : {1, 2, 41}) {
    const HeadGroup<double> group = leaning_group(l);
    for (const Case& what : all_cases()) {
      INFO(what.label() << ", l " << l);
      const MergedCache cache = merged(group, KeptSet(l, 1), what);
      CHECK(same_bytes(cache.k, group.k.topRows(l)));
      CHECK(same_bytes(cache.v, group.v.topRows(l)));
      CHECK(cache.bias == Vector<double>::Zero(l));
      CHECK(cache.merged == 0);
    }
  }
}

TEST_CASE("with nothing kept all is dropped", "[mergers]") {
  const HeadGroup<double> group = leaning_group();
  for (const Case& what : all_cases()) {
    INFO(what.label());
    const MergedCache cache = merged(group, KeptSet(group.l, 0), what);
    CHECK(cache.merged == 0);
    CHECK(cache.bias.isZero(0));
    CHECK(cache.k.rows() == group.l);
    CHECK(cache.v.rows() == group.l);
  }
}

TEST_CASE("merging stays finite, changes only what it says and only kept tokens that took one in",
          "[mergers]") {
  for (const double lean : {0.0, 0.5, 2.0}) {
    const HeadGroup<double> group = leaning_group(41, lean);
    for (const Index step : {2, 5, 40}) {
      const KeptSet kept = every(group.l, step);
      for (const Case& what : all_cases()) {
        INFO(what.label() << ", lean " << lean << ", every " << step);
        const MergedCache cache = merged(group, kept, what);
        const MergingFacts& facts = kMergings[what.method];
        CHECK(rows_of(cache.k, kept).allFinite());
        CHECK(rows_of(cache.v, kept).allFinite());
        if (!facts.changes_keys) CHECK(same_bytes(cache.k, group.k.topRows(group.l)));
        if (!facts.biased) CHECK(cache.bias.isZero(0));
        CHECK(cache.merged <= group.l - count(kept));
        if (cache.merged == 0)
          CHECK(same_bytes(rows_of(cache.v, kept), rows_of(group.v.topRows(group.l), kept)));
        if (lean == 2.0) CHECK(cache.merged > 0);
      }
    }
  }
}

TEST_CASE("a key of norm 0 has cosine 0", "[mergers]") {
  HeadGroup<double> group = leaning_group();
  group.k.row(3).setZero();
  group.k.row(9).setZero();
  group.v.row(9).setZero();
  KeptSet kept = every(group.l, 4);  // 3, 7, ..
  for (const Case& what : all_cases()) {
    INFO(what.label());
    for (const double threshold : {0.0, 0.5}) {
      const MergedCache cache = merged(group, kept, what, {.threshold = threshold});
      CHECK(rows_of(cache.k, kept).allFinite());
      CHECK(rows_of(cache.v, kept).allFinite());
    }
  }
  // Alone among tokens of norm 0 it is merged by no threshold above 0.
  group.k.setZero();
  for (const Case& what : all_cases()) {
    if (what.method == Merging::cam) continue;
    INFO(what.label());
    CHECK(merged(group, kept, what, {.threshold = 0.1}).merged == 0);
  }
}

TEST_CASE("a token merged into its like changes nothing but its votes", "[mergers]") {
  HeadGroup<double> group = leaning_group(6);
  for (Index p = 1; p < 6; ++p) {
    group.k.row(p) = group.k.row(0);
    group.v.row(p) = group.v.row(0);
  }
  const KeptSet kept{0, 0, 1, 0, 0, 1};
  for (const Case& what : all_cases()) {
    // Values are added up in CaM, and scaled down by the cosine in D2O's code (where it is 1 they are a
    // mean).
    if (what.method == Merging::cam) continue;
    INFO(what.label());
    const MergedCache cache = merged_cache(group, kept, what.method, what.semantics,
                                           attention_of({.2, .2, .2, .2, .2, .2}), {.threshold = 0.99});
    CHECK(cache.merged == 4);
    CHECK(rows_of(cache.k, kept).isApprox(rows_of(group.k.topRows(6), kept), 1e-13));
    CHECK(rows_of(cache.v, kept).isApprox(rows_of(group.v.topRows(6), kept), 1e-6));
    if (what.method == Merging::keepkv) CHECK(votes(cache, kept) == Approx(6));
  }
}

TEST_CASE("ties go to the lower position", "[mergers]") {
  // Tokens 1 and 4 are kept and have one key; 0 and 3 have it too, and so it is a tie to the bit.
  const Matrix<double> k = matrix({{.3, .1, .7}, {.3, .1, .7}, {-1, 0, 0}, {.3, .1, .7}, {.3, .1, .7}});
  const Matrix<double> v = matrix({{1, 0}, {2, 1}, {0, 0}, {4, 4}, {8, 2}});
  const HeadGroup<double> group = group_of(k, v);
  const KeptSet kept{0, 1, 0, 0, 1};
  const WindowAttention attention = attention_of({1, 1, 1, 1, 1});
  for (const Case& what : all_cases()) {
    if (what.method == Merging::cam || what.method == Merging::kvmerger) continue;
    INFO(what.label());
    const MergedCache cache =
        merged_cache(group, kept, what.method, what.semantics, attention, {.threshold = 0.5});
    CHECK(cache.merged == 2);
    CHECK(cache.v.row(4) == v.row(4));
    CHECK(cache.v.row(1) != v.row(1));
  }
  // KVMerger: equally weak links are cut at the last.
  const HeadGroup<double> run = group_of(Matrix<double>::Ones(5, 3), v.topRows(5));
  const MergedCache cache = merged_cache(run, {1, 0, 0, 0, 1}, Merging::kvmerger, Semantics::paper, {});
  CHECK(cache.v.row(4) == v.row(4));
  CHECK(cache.v.row(0).isApprox(v.topRows(4).colwise().mean(), 1e-14));
}

TEST_CASE("CaM adds the expected values to the next kept tokens", "[mergers]") {
  const Matrix<double> v = matrix({{16, 1}, {2, 1}, {8, 2}, {4, 0}, {1, 1}, {32, 32}});
  const HeadGroup<double> group = group_of(Matrix<double>::Ones(6, 3), v);
  const KeptSet kept{0, 1, 0, 1, 1, 0};
  // Of token 0 (0.1) the next two have mean 0.2; of token 2 the two behind 0.3, which 0.5 is above; nothing
  // is behind token 5.
  const WindowAttention attention = attention_of({.1, .1, .5, .3, .3, .9});
  const MergedCache two = merged_cache(group, kept, Merging::cam, Semantics::paper, attention, {.budget = 2});
  CHECK(two.v.row(1).isApprox(Eigen::RowVector2d(2 + 16 * .25, 1 + .25)));
  CHECK(two.v.row(3).isApprox(Eigen::RowVector2d(4 + 16 * .25 + 4, .25 + 1)));
  CHECK(two.v.row(4).isApprox(Eigen::RowVector2d(1 + 4, 1 + 1)));
  CHECK(two.merged == 2);
  // The code looks at all that follow, and divides by the budget whatever there is.
  const MergedCache code =
      merged_cache(group, kept, Merging::cam, Semantics::official, attention, {.budget = 2});
  const double p = .1 / ((.1 + .3 + .3) / 3);
  CHECK(code.v.row(1).isApprox(Eigen::RowVector2d(2 + 16 * p / 2, 1 + p / 2)));
  const MergedCache wide = merged_cache(group, kept, Merging::cam, Semantics::official, attention);
  CHECK(wide.v.row(4).isApprox(Eigen::RowVector2d(1 + (16 * p + 8) / 32, 1 + (p + 2) / 32)));

  // Nobody looks at anything: nothing is worth keeping; at the evicted token alone: all of it.
  CHECK(merged_cache(group, kept, Merging::cam, Semantics::paper, attention_of({0, 0, 0, 0, 0, 0})).merged ==
        0);
  const MergedCache alone =
      merged_cache(group, kept, Merging::cam, Semantics::paper, attention_of({1, 0, 0, 0, 0, 0}));
  CHECK(rows_of(alone.v, kept).colwise().sum().isApprox(Eigen::RowVector2d(7 + 16, 2 + 1)));
}

TEST_CASE("CaM conserves values in expectation", "[mergers]") {
  const HeadGroup<double> group = leaning_group();
  const WindowAttention attention = window_attention(group, 32);
  KeptSet kept = every(group.l, 4);
  kept[group.l - 1] = 1;
  const Vector<double> even = Vector<double>::Ones(group.l);
  const MergedCache cache =
      merged_cache(group, kept, Merging::cam, Semantics::paper, {even, even}, {.budget = 3});
  CHECK(cache.merged == group.l - count(kept));
  CHECK(rows_of(cache.v, kept).colwise().sum().isApprox(group.v.topRows(group.l).colwise().sum(), 1e-12));
}

TEST_CASE("D2O merges what is nearer than the mean, by exp of the cosine", "[mergers]") {
  // Kept: x and y axes. Evicted: 1 at cosine 1 with x, 2 at 0.8 with x, 4 at 0.6.. with y only; the mean of
  // 1, 0.8 and 0.9 leaves out 2.
  const double s = std::sqrt(1 - .81);
  const Matrix<double> k = matrix({{1, 0, 0}, {2, 0, 0}, {.8, 0, .6}, {0, 3, 0}, {0, .9, s}});
  const Matrix<double> v = matrix({{1, 0}, {2, 1}, {5, 5}, {4, 4}, {8, 2}});
  const HeadGroup<double> group = group_of(k, v);
  const KeptSet kept{1, 0, 0, 1, 0};
  const MergedCache cache = merged_cache(group, kept, Merging::d2o, Semantics::paper, {});
  CHECK(cache.merged == 2);
  const double e = std::exp(1.0), w = std::exp(.9);
  CHECK(cache.k.row(0).isApprox((e * k.row(0) + e * k.row(1)) / (2 * e)));
  CHECK(cache.v.row(0).isApprox(Eigen::RowVector2d(1.5, .5)));
  CHECK(cache.k.row(3).isApprox((e * k.row(3) + w * k.row(4)) / (e + w)));
  CHECK(cache.v.row(3).isApprox((e * v.row(3) + w * v.row(4)) / (e + w)));

  const MergedCache code = merged_cache(group, kept, Merging::d2o, Semantics::official, {});
  CHECK(code.v.row(3).isApprox((v.row(3) + .9 * v.row(4)) / 2));
  CHECK(code.k.row(0).isApprox((k.row(0) + k.row(1)) / 2));

  // Equal cosines, whose mean may round above them, are all merged.
  for (Index n = 1; n <= 40; ++n) {
    Matrix<double> alike = Matrix<double>::Ones(n + 1, 3);
    alike.row(0) << 1, 0, .3;
    const HeadGroup<double> same = group_of(alike, Matrix<double>::Ones(n + 1, 2));
    KeptSet first(n + 1, 0);
    first[0] = 1;
    CHECK(merged_cache(same, first, Merging::d2o, Semantics::paper, {}).merged == n);
  }
  // A threshold of one's own in place of the mean.
  CHECK(merged_cache(group, kept, Merging::d2o, Semantics::paper, {}, {.threshold = .7}).merged == 3);
}

TEST_CASE("KVMerger merges runs of similar keys around the kept ones", "[mergers]") {
  // Angles of the keys; the cosine of 0.75 is at 0.72 rad. One run is 0..4, cut between the kept 1 and 4 at
  // the weakest link, 2|3; the other is 5..6, with nothing kept.
  const std::vector<double> angles = {0.3, 0.1, 0.3, 0.7, 0.9, 2.9, 3.0};
  Matrix<double> k(7, 2), v(7, 1);
  for (Index p = 0; p < 7; ++p) {
    k.row(p) = Eigen::RowVector2d(std::cos(angles[p]), std::sin(angles[p])) * 3;
    v(p, 0) = static_cast<double>(1 << p);
  }
  const HeadGroup<double> group = group_of(k, v);
  const KeptSet kept{0, 1, 0, 0, 1, 0, 0};
  const double sigma = 0.8;
  const MergedCache cache =
      merged_cache(group, kept, Merging::kvmerger, Semantics::paper, {}, {.sigma = sigma});
  const double g = std::exp(-std::pow(2 * 3 * std::sin(.1), 2) / (2 * sigma * sigma));  // chord of 0.2 rad
  CHECK(cache.merged == 3);
  CHECK(cache.v(1, 0) == Approx((2 + g * 1 + g * 4) / (1 + 2 * g)));
  CHECK(cache.v(4, 0) == Approx((16 + g * 8) / (1 + g)));
  CHECK(cache.k.row(4).isApprox((k.row(4) + g * k.row(3)) / (1 + g)));
  // Every set has one kept token: two neighbours that are both kept part all between them.
  const MergedCache pair =
      merged_cache(group, {0, 1, 1, 0, 0, 0, 0}, Merging::kvmerger, Semantics::paper, {}, {.sigma = sigma});
  CHECK(pair.v(1, 0) == Approx((2 + g) / (1 + g)));
  CHECK(pair.merged == 3);
}

TEST_CASE("KeepKV counts votes and leaves the scoring row's output as it was", "[mergers]") {
  for (const std::optional<double> softcap : {std::optional<double>{}, std::optional<double>{30.0}}) {
    HeadGroup<double> group = random_group({.l = 41,
                                            .T = 44,
                                            .G = 1,
                                            .d = 7,
                                            .d_v = 5,
                                            .logit_std = 1.5,
                                            .value_offset = 0.5,
                                            .softcap = softcap});
    const WindowAttention attention = window_attention(group, 1);
    for (const Index step : {2, 7, 41}) {
      const KeptSet kept = every(group.l, step);
      for (const Semantics semantics : {Semantics::paper, Semantics::official}) {
        INFO("every " << step << ", " << name_of(semantics) << (softcap ? ", soft cap" : ""));
        const MergedCache cache =
            merged_cache(group, kept, Merging::keepkv, semantics, attention, {.threshold = -2.0});
        CHECK(cache.merged == group.l - count(kept));
        CHECK(votes(cache, kept) == Approx(group.l));
        const Vector<double> want = attention_output(group, 0, group.l - 1);
        const double error = (merged_output(group, kept, cache) - want).norm() / want.norm();
        if (semantics == Semantics::paper && !softcap) CHECK(error < 1e-9);
        if (semantics == Semantics::official && step < 41) CHECK(error > 1e-6);
      }
    }
    // With its own threshold, only what was merged votes.
    const KeptSet kept = every(group.l, 3);
    const MergedCache cache = merged_cache(group, kept, Merging::keepkv, Semantics::paper, attention);
    CHECK(votes(cache, kept) == Approx(count(kept) + cache.merged));
  }
}

TEST_CASE("KeepKV weighs by attention and scales the key", "[mergers]") {
  const Matrix<double> k = matrix({{1, 0}, {2, 0.1}, {3, 0}}), v = matrix({{1, 2}, {3, 5}, {7, 0}});
  const HeadGroup<double> group = group_of(k, v);
  const KeptSet kept{1, 0, 0};
  const WindowAttention attention = attention_of({2, 3, 5});
  const MergedCache cache = merged_cache(group, kept, Merging::keepkv, Semantics::paper, attention);
  const double lambda =
      std::log(10.0 / 3) / ((2 * std::log(2.0) + 3 * std::log(3.0) + 5 * std::log(5.0)) / 10);
  CHECK(cache.k.row(0).isApprox(lambda * (2 * k.row(0) + 3 * k.row(1) + 5 * k.row(2)) / 10));
  CHECK(cache.v.row(0).isApprox((2 * v.row(0) + 3 * v.row(1) + 5 * v.row(2)) / 10));
  CHECK(cache.bias[0] == Approx(std::log(3)));
  const MergedCache code = merged_cache(group, kept, Merging::keepkv, Semantics::official, attention);
  CHECK(code.k.row(0).isApprox((2 * k.row(0) + 3 * k.row(1) + 5 * k.row(2)) / 10));

  // Scores of 1: their logarithms leave no scale. Logits of a thousand; tokens that no row sees.
  const MergedCache ones =
      merged_cache(group, kept, Merging::keepkv, Semantics::paper, attention_of({1, 1, 1}));
  CHECK(ones.k.row(0).isApprox(k.colwise().mean()));
  WindowAttention large = attention;
  large.log_s = Vector<double>{{1000, 999, -1000}};
  const MergedCache far = merged_cache(group, kept, Merging::keepkv, Semantics::paper, large);
  const double e = std::exp(-1.0);
  CHECK(far.v.row(0).isApprox((v.row(0) + e * v.row(1)) / (1 + e)));
  large.log_s = Vector<double>{{kHidden, kHidden, 1.0}};
  CHECK(merged_cache(group, kept, Merging::keepkv, Semantics::paper, large).v.row(0).isApprox(v.row(2)));
  large.log_s.setConstant(kHidden);
  CHECK(merged_cache(group, kept, Merging::keepkv, Semantics::paper, large)
            .v.row(0)
            .isApprox(v.colwise().mean()));
}

TEST_CASE("window attention is the mean of the rows' weights and of their scores", "[mergers]") {
  for (const auto& spec :
       {GroupSpec{.l = 21, .T = 24, .G = 3, .d = 5, .d_v = 4, .logit_std = 20},
        GroupSpec{.l = 21, .T = 24, .T_q = 7, .G = 2, .sliding_window = 6, .softcap = 4.0, .sink_logit = 1.0},
        GroupSpec{.l = 21, .T = 24, .G = 1, .causal = false}}) {
    const HeadGroup<double> group = random_group(spec);
    for (const Index window : {1, 8}) {
      const WindowAttention got = window_attention(group, window);
      Vector<double> a = Vector<double>::Zero(group.l), s = a, seen = a;
      const Index first = std::max(group.l - window, group.first_query());
      for (Index i = first; i < group.l; ++i)
        for (Index g = 0; g < group.G(); ++g) {
          const Vector<double> z = attention_logits(group, g, i).z;
          a += attention_weights(group, g, z).head(group.l) /
               static_cast<double>((group.l - first) * group.G());
          s.array() += z.head(group.l).array().exp();
          seen.array() += (z.head(group.l).array() > kHidden).cast<double>();
        }
      for (Index p = 0; p < group.l; ++p) {
        CHECK(got.a[p] == Approx(a[p]).epsilon(1e-11).margin(1e-300));
        if (seen[p] > 0)
          CHECK(got.log_s[p] == Approx(std::log(s[p] / seen[p])).epsilon(1e-11).margin(1e-11));
        else
          CHECK(got.log_s[p] == kHidden);
      }
    }
  }
}

namespace {

/// The arrays of tests/golden/kvpress/kvpress-0.5.4.merging.npz (README.md there).
class Golden {
 public:
  /// [heads] of [rows, cols]
  std::vector<Matrix<double>> floats(const std::string& name) const {
    const NpyArray array = open(name);
    const auto& shape = array.header.shape;
    std::vector<Matrix<double>> heads;
    for (std::ptrdiff_t h = 0; h < shape[0]; ++h) {
      Matrix<double> x(shape[1], shape[2]);
      const MatrixView view{h * x.size(), x.rows(), x.cols(), x.cols(), 1};
      REQUIRE_FALSE(read_matrix<double>(array, *array.header.dtype, view, x.data()));
      heads.push_back(std::move(x));
    }
    return heads;
  }
  /// [heads] of kept sets of l tokens.
  std::vector<KeptSet> kept(const std::string& name, Index l) const {
    const NpyArray array = open(name);
    const std::size_t n = array.header.shape[1];
    std::vector<std::int32_t> tokens(array.header.shape[0] * n);
    const std::uint64_t begin = array.header.data_offset;
    array.source->read(begin, begin + array.header.data_bytes(), true, [&](std::span<const std::byte> bytes) {
      std::memcpy(tokens.data(), bytes.data(), bytes.size());
    });
    std::vector<KeptSet> sets(array.header.shape[0], KeptSet(l, 0));
    for (std::size_t m = 0; m < tokens.size(); ++m) sets[m / n][tokens[m]] = 1;
    return sets;
  }

 private:
  NpyArray open(const std::string& name) const {
    for (std::size_t m = 0; m < archive_.members().size(); ++m)
      if (archive_.members()[m].name == name + ".npy")
        return open_npy(name, archive_.source(m), NpyElements::any);
    FAIL("no array " << name);
    return {};
  }
  NpzArchive archive_ =
      NpzArchive::open(test::source_dir() / "tests/golden/kvpress/kvpress-0.5.4.merging.npz");
};

/// float32 sums of up to some 800 values, each of a cosine and two norms that were rounded.
constexpr Tolerance kFloat32Sums{2e-6, 0, 1, 0};

void check_press(const std::string& name, const HeadGroup<double>& group, const KeptSet& kept,
                 const Matrix<double>& want, double threshold) {
  const MergedCache cache =
      merged_cache(group, kept, Merging::merging_press, Semantics::kvpress, {}, {.threshold = threshold});
  CHECK(mismatch(name, want, rows_of(cache.v, kept), kFloat32Sums) == "");
  CHECK(same_bytes(cache.k, group.k.topRows(group.l)));
  // Merged values are far from the values: the comparison would see a token gone astray.
  CHECK(mismatch(name, want, rows_of(group.v.topRows(group.l), kept), {1e-3, 0, 1, 0}) != "");
}

}  // namespace

TEST_CASE("merged values equal kvpress' MergingPress", "[mergers][golden]") {
  const Golden golden;
  const HeadGroup<double> small =
      group_of(golden.floats("small.k").front(), golden.floats("small.v").front());
  for (const auto& [name, threshold] : {std::pair{"unkind", 0.0}, std::pair{"unkind_0.5", 0.5}}) {
    check_press(name, small, golden.kept(std::string(name) + ".kept", small.l).front(),
                golden.floats(std::string(name) + ".v").front(), threshold);
  }
  const Dump dump = Dump::open(test::source_dir() / "data/samples/pystdlib-lm");
  for (const Index layer : {0, 4})
    for (const char* ratio : {"0.9", "0.98"}) {
      const std::string name = fmt::format("layer_{}_{}", layer, ratio);
      const auto values = golden.floats(name + ".v");
      for (Index h = 0; h < std::ssize(values); ++h) {
        const HeadGroup<double> group = load_head_group<double>(dump, layer, h);
        check_press(fmt::format("{}, KV head {}", name, h), group, golden.kept(name + ".kept", group.l)[h],
                    values[h], 0.0);
      }
    }
}
