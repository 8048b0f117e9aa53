#include "sim/cuda/transfer.hpp"
#include "tests/sim/gram_cases.hpp"
#include "tests/support/catch.hpp"

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

/// X^T X of all rows on the device, products and sums in float64.
Matrix<double> gram(const Matrix<float>& x) {
  const cuda::Stream stream;
  cuda::DeviceArrays arrays(stream);
  const Index d = x.cols();
  const cuda::GramRows rows{arrays.copy_of<float>(x), x.rows(), static_cast<int>(d)};
  return cuda::downloaded_matrix(cuda::gram_of(rows, cuda::GramProducts::exact, arrays, stream), d, d,
                                 stream);
}

void check_gram_twins(const Matrix<float>& x) {
  INFO("d = " << x.cols() << ", " << x.rows() << " rows");
  const Matrix<double> want = gram_reference(x.cast<double>(), range(0, x.rows()));
  const Matrix<double> got = gram(x);
  CHECK(mismatch("gram", want, got, kGramDouble) == "");
  CHECK(same_bytes(got, got.transpose()));
}

}  // namespace

TEST_CASE("the CUDA Gram matrices agree with a sum of products", "[cuda]") {
  for (const Index d : gram_widths())
    for (const Index n : {0, 1, 127, 128, 129, 1025, 2600})
      check_gram_twins(random_matrix(kGramRows, d).topRows(n).cast<float>());
  // Blocks take more than one part of the rows, and many tiles.
  for (const Index d : {192, 321, 1024, 1025}) check_gram_twins(random_matrix(150, d).cast<float>());
}

TEST_CASE("the CUDA Gram matrices are the same to the bit in two runs", "[cuda]") {
  for (const Index d : {1, 33, 129}) {
    const Matrix<float> x = random_matrix(700, d).cast<float>();
    CHECK(same_bytes(gram(x), gram(x)));
  }
}

TEST_CASE("a CUDA Gram matrix over more rows than blocks take 128 of does not drift", "[cuda]") {
  const Matrix<float> x = Matrix<float>::Constant(70000, 3, 1.1f);
  const double want = 70000.0 * static_cast<double>(1.1f) * static_cast<double>(1.1f);
  CHECK((gram(x).array() / want - 1).abs().maxCoeff() < 1e-12);
}

TEST_CASE("squares beyond float32 are none in CUDA: sums are float64", "[cuda]") {
  Matrix<float> x = random_matrix(300, 20).cast<float>();
  x(270, 3) = 1e30f;
  CHECK(mismatch("gram", gram_reference(x.cast<double>(), range(0, 300)), gram(x), kGramDouble) == "");
}
