#include "sim/channels/channel_interaction.hpp"

#include "tests/sim/gram_cases.hpp"
#include "tests/support/catch.hpp"

#include <cmath>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

template <class T>
Matrix<double> channel_interaction(const HeadGroup<T>& group, const std::vector<Index>& keys, RowRange rows,
                                   Workers& workers) {
  return gram_f64(group.k, keys, workers).cwiseProduct(query_gram(group, rows, workers));
}

template <class T>
void check_gram() {
  Workers one(1), three(3);
  for (const Index d : gram_widths()) {
    const Matrix<T> x = random_matrix(kGramRows, d).cast<T>();
    const Matrix<double> judged = x.template cast<double>();
    for (const std::vector<Index>& rows : gram_row_lists()) {
      INFO("d = " << d << ", " << rows.size() << " rows");
      const Matrix<double> got = gram_f64(x, rows, three);
      CHECK(mismatch("gram", gram_reference(judged, rows), got, kGramDouble) == "");
      CHECK(same_bytes(got, got.transpose()));
      CHECK(same_bytes(got, gram_f64(x, rows, one)));
    }
  }
}

}  // namespace

TEST_CASE("Gram matrices of float64 agree with a sum of products", "[channels]") { check_gram<double>(); }

TEST_CASE("Gram matrices of float32 agree with a sum of products", "[channels]") { check_gram<float>(); }

TEST_CASE("a long Gram matrix of float32 does not drift", "[channels]") {
  Workers workers(2);
  // Sums of 40000 equal terms; in float32 alone they would be off by 1e-4 and more.
  const Matrix<float> x = Matrix<float>::Constant(40000, 3, 1.1f);
  const double want = 40000.0 * static_cast<double>(1.1f) * static_cast<double>(1.1f);
  const Matrix<double> got = gram_f64(x, range(0, 40000), workers);
  CHECK((got.array() / want - 1).abs().maxCoeff() < 1e-12);
}

TEST_CASE("H agrees with the sum over rows, heads and keys", "[channels]") {
  Workers workers(2);
  for (const GroupSpec& spec : interaction_specs()) {
    const HeadGroup<double> group = random_group(spec);
    const HeadGroup<double> rounded = to_double(to_float(group));
    for (const RowRange rows : interaction_rows(group)) {
      for (const std::vector<Index>& keys : interaction_keys(group)) {
        INFO("case " << spec.seed - 700 << ", rows " << rows.begin << " to " << rows.end << ", "
                     << keys.size() << " keys");
        const Matrix<double> want = channel_interaction_reference(group, keys, rows);
        CHECK(mismatch("H", want, channel_interaction(group, keys, rows, workers), of_largest(1e-12)) == "");
        CHECK(mismatch("H of float32", channel_interaction_reference(rounded, keys, rows),
                       channel_interaction(to_float(group), keys, rows, workers), of_largest(1e-12)) == "");
      }
    }
  }
}

TEST_CASE("the diagonal alone is H's", "[channels]") {
  Workers one(1), three(3);
  const auto check = [&](const auto& group, const std::vector<Index>& keys, RowRange rows) {
    const Vector<double> want = channel_interaction(group, keys, rows, one).diagonal();
    const auto diagonal = [&](Workers& workers) {
      return Vector<double>(
          gram_diagonal(group.k, keys, workers).cwiseProduct(query_gram_diagonal(group, rows, workers)));
    };
    const Vector<double> got = diagonal(three);
    for (Index c = 0; c < want.size(); ++c) CHECK(std::abs(got[c] - want[c]) <= 1e-12 * want[c]);
    CHECK(same_bytes(Matrix<double>(got), Matrix<double>(diagonal(one))));
  };
  for (const GroupSpec& spec : interaction_specs()) {
    const HeadGroup<double> group = random_group(spec);
    for (const RowRange rows : interaction_rows(group))
      for (const std::vector<Index>& keys : interaction_keys(group)) {
        INFO("case " << spec.seed - 700 << ", rows " << rows.begin << " to " << rows.end << ", "
                     << keys.size() << " keys");
        check(group, keys, rows);
        check(to_float(group), keys, rows);
      }
  }
  // several items of the loop, and keys one by one
  const HeadGroup<double> longer = random_group({.l = 1500, .T = 1500, .G = 2, .d = 67});
  for (const Index step : {1, 2}) check(to_float(longer), range(0, 1500, step), {1490, 1500});
}

TEST_CASE("H is positive semidefinite and its diagonal the squared ThinK score", "[channels]") {
  Workers workers(2);
  const HeadGroup<double> group = random_group({.G = 3, .d = 24});
  const RowRange rows = window_rows(group.l, group.first_query(), 16);
  const Matrix<double> H = channel_interaction(group, range(0, group.l), rows, workers);
  const Vector<double> eigenvalues = spectrum(H);
  CHECK(eigenvalues[23] >= -1e-13 * eigenvalues[0]);
  for (Index c = 0; c < 24; ++c) {
    double score_sq = 0;  // ||Q[:, c]||^2 ||K[:, c]||^2 over the group's heads
    for (const HeadMatrix<double>& q : group.q)
      score_sq += q.col(c).segment(rows.begin - group.first_query(), rows.count()).squaredNorm() *
                  group.k.col(c).head(group.l).squaredNorm();
    CHECK(H(c, c) == Approx(score_sq).epsilon(1e-13));
  }
}

TEST_CASE("the sum of H over a set is the squared change of the logits", "[channels]") {
  Workers workers(2);
  const HeadGroup<double> group = random_group({.G = 3, .d = 9, .logit_shift = 3});
  const RowRange rows = window_rows(group.l, group.first_query(), 10);
  const std::vector<Index> keys = range(0, group.l, 2);
  const Matrix<double> H = channel_interaction(group, keys, rows, workers);
  for (unsigned bits = 0; bits < 512; bits += 7) {
    std::vector<std::uint8_t> dropped;
    double error = 0;
    for (unsigned c = 0; c < 9; ++c) dropped.push_back(bits >> c & 1u);
    for (Index c = 0; c < 9; ++c)
      for (Index e = 0; e < 9; ++e)
        if ((bits >> c & 1u) != 0 && (bits >> e & 1u) != 0) error += H(c, e);
    const double want = reconstruction_error_reference(group, keys, rows, dropped);
    CHECK(std::abs(error - want) <= 1e-12 * H.cwiseAbs().sum());
  }
}

TEST_CASE("Gram matrices add up over rows, and H over keys and rows given the other", "[channels]") {
  Workers workers(2);
  const HeadGroup<double> group = random_group({.l = 600, .T = 610, .G = 2, .d = 20});
  const Matrix<double> whole = gram_f64(group.k, range(0, 600), workers);
  for (const Index cut : {1, 255, 256, 300, 599}) {
    const Matrix<double> parts =
        gram_f64(group.k, range(0, cut), workers) + gram_f64(group.k, range(cut, 600), workers);
    CHECK(mismatch("keys", whole, parts, kGramDouble) == "");
    const Matrix<double> rows = query_gram(group, {0, cut}, workers) + query_gram(group, {cut, 610}, workers);
    CHECK(mismatch("rows", query_gram(group, {0, 610}, workers), rows, kGramDouble) == "");
  }
  std::vector<Index> permuted;
  for (Index p = 0; p < 600; ++p) permuted.push_back(p * 77 % 600);
  CHECK(mismatch("order of keys", whole, gram_f64(group.k, permuted, workers), kGramDouble) == "");
}

TEST_CASE("rows are positions: queries may begin late", "[channels]") {
  Workers workers(1);
  const HeadGroup<double> all = random_group({.G = 2, .d = 6});
  HeadGroup<double> late = all;
  for (HeadMatrix<double>& q : late.q) q = Matrix<double>(q.bottomRows(10));
  const RowRange rows{39, 45};
  CHECK(same_bytes(query_gram(late, rows, workers), query_gram(all, rows, workers)));
  CHECK(!same_bytes(query_gram(late, {40, 46}, workers), query_gram(all, rows, workers)));
}

TEST_CASE("the share off the diagonal and the spectrum by hand", "[channels]") {
  Matrix<double> H(3, 3);
  H << 2, -1, 0, -1, 2, 0, 0, 0, 5;
  CHECK(off_diagonal_share(H) == Approx(2.0 / 11));
  const Vector<double> eigenvalues = spectrum(H);
  REQUIRE(eigenvalues.size() == 3);
  CHECK(eigenvalues[0] == Approx(5));
  CHECK(eigenvalues[1] == Approx(3));
  CHECK(eigenvalues[2] == Approx(1));
  CHECK(off_diagonal_share(Matrix<double>::Zero(4, 4)) == 0.0);
  CHECK(off_diagonal_share(Matrix<double>::Identity(4, 4)) == 0.0);
}

TEST_CASE("Gram matrices stop where they are asked to", "[channels]") {
  Workers stopped(2);
  stopped.stop();
  CHECK_THROWS_AS(gram_f64(random_matrix(10, 4), range(0, 10), stopped), Interrupted);
}

TEST_CASE("the error of a set whose channels cancel keeps its digits in float32", "[channels]") {
  Workers workers(1);
  const CancellingPair pair = cancelling_pair();
  const Matrix<double> H =
      gram_f64(pair.group.k, pair.keys, workers).cwiseProduct(query_gram(pair.group, pair.rows, workers));
  CHECK(pair.expected > 0);
  CHECK(pair.expected < 1e-9 * H(7, 7));  // sums in float32 have nothing left of it
  CHECK(std::abs(pair.error_of(H) / pair.expected - 1) < 1e-3);
}

TEST_CASE("products in float64 agree with tiles in the keys' own type", "[channels]") {
  Workers one(1), three(3);
  for (const Index d : {1, 15, 16, 17, 33, 128}) {
    const Matrix<double> wide = random_matrix(3000, d);
    const Matrix<float> x = wide.cast<float>();
    const std::vector<Index> rows = range(5, 2990, 2);
    const Matrix<double> sums = gram_f64(x, rows, one);
    const Matrix<double> expected = gram_reference(x.cast<double>(), rows);
    CHECK((sums - expected).cwiseAbs().maxCoeff() <= 1e-13 * expected.cwiseAbs().maxCoeff());
    CHECK(sums == sums.transpose());
    CHECK(sums == gram_f64(x, rows, three));
  }
  CHECK(gram_f64(Matrix<float>(3, 2), {}, one).isZero(0.0));
}
