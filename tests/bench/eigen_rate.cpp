#include "tests/bench/eigen_rate.hpp"

#include <Eigen/Core>

namespace kvreplay::bench {

float eigen_products(int repeats) {
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Matrix q = Matrix::Constant(128, 128, 0.01f), k = Matrix::Constant(256, 128, 0.02f);
  Matrix z(128, 256);
  for (int i = 0; i < repeats; ++i) z.noalias() = q * k.transpose();
  return z(0, 0);
}

}  // namespace kvreplay::bench
