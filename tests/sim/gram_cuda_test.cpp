#include "sim/channels/channel_interaction.hpp"
#include "tests/sim/gram_cases.hpp"
#include "tests/support/catch.hpp"

#include <cmath>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

void check_gram_twins(const Matrix<float>& x, const std::vector<Index>& rows) {
  INFO("d = " << x.cols() << ", " << rows.size() << " rows");
  const Matrix<double> want = gram_reference(x.cast<double>(), rows);
  const Matrix<double> got = gram_f64_cuda(x, rows);
  CHECK(mismatch("gram", want, got, kGramDouble) == "");
  CHECK(same_bytes(got, got.transpose()));
}

}  // namespace

TEST_CASE("the CUDA Gram matrices agree with a sum of products", "[cuda]") {
  for (const Index d : gram_widths()) {
    const Matrix<float> x = random_matrix(kGramRows, d).cast<float>();
    for (const std::vector<Index>& rows : gram_row_lists()) check_gram_twins(x, rows);
  }
  CHECK(gram_f64_cuda(Matrix<float>(0, 3), {}).isZero(0.0));
}

TEST_CASE("the CUDA Gram matrices of many channels agree with a sum of products", "[cuda]") {
  for (const Index d : {192, 321, 1024, 1025}) {
    const Matrix<float> x = random_matrix(300, d).cast<float>();
    check_gram_twins(x, range(1, 300, 2));
  }
}

TEST_CASE("the CUDA Gram matrices are the same to the bit in two runs", "[cuda]") {
  for (const Index d : {1, 33, 129}) {
    const Matrix<float> x = random_matrix(2000, d).cast<float>();
    const std::vector<Index> rows = range(0, 2000, 3);
    CHECK(same_bytes(gram_f64_cuda(x, rows), gram_f64_cuda(x, rows)));
  }
}

TEST_CASE("a CUDA Gram matrix over more rows than blocks take 128 of does not drift", "[cuda]") {
  const Matrix<float> x = Matrix<float>::Constant(70000, 3, 1.1f);
  const std::vector<Index> rows = range(0, 70000);
  const double want = 70000.0 * static_cast<double>(1.1f) * static_cast<double>(1.1f);
  CHECK((gram_f64_cuda(x, rows).array() / want - 1).abs().maxCoeff() < 1e-12);
}

TEST_CASE("squares beyond float32 are none in CUDA: sums are float64", "[cuda]") {
  Matrix<float> x = random_matrix(300, 20).cast<float>();
  x(270, 3) = 1e30f;
  CHECK(mismatch("gram", gram_reference(x.cast<double>(), range(0, 300)), gram_f64_cuda(x, range(0, 300)),
                 kGramDouble) == "");
}

TEST_CASE("H from the CUDA twins agrees with the sum over rows, heads and keys", "[cuda]") {
  for (const GroupSpec& spec : interaction_specs()) {
    const HeadGroup<float> group = to_float(random_group(spec));
    const HeadGroup<double> judged = to_double(group);
    for (const RowRange rows : interaction_rows(judged)) {
      const Matrix<double> queries = query_gram_cuda(group, rows);
      CHECK(same_bytes(queries, query_gram_cuda(group, rows)));
      for (const std::vector<Index>& keys : interaction_keys(judged)) {
        INFO("case " << spec.seed - 700 << ", rows " << rows.begin << " to " << rows.end << ", "
                     << keys.size() << " keys");
        CHECK(mismatch("H", channel_interaction_reference(judged, keys, rows),
                       gram_f64_cuda(group.k, keys).cwiseProduct(queries), of_largest(1e-12)) == "");
      }
    }
  }
}

TEST_CASE("the error of a set whose channels cancel keeps its digits in CUDA", "[cuda]") {
  const CancellingPair pair = cancelling_pair();
  const Matrix<double> H =
      gram_f64_cuda(pair.group.k, pair.keys).cwiseProduct(query_gram_cuda(pair.group, pair.rows));
  CHECK(std::abs(pair.error_of(H) / pair.expected - 1) < 1e-3);
}
