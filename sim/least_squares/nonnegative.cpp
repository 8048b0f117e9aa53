#include "sim/least_squares/nonnegative.hpp"

#include "sim/least_squares/cholesky.hpp"

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace kvreplay {

Vector<double> nonnegative_least_squares(const Matrix<double>& A, double ridge, const Vector<double>& f,
                                         const Vector<double>& near, Workers& workers) {
  constexpr int kFullExchanges = 3;  // that may fail to help before one token is exchanged at a time
  const Index m = f.size();
  const double rounding = m > 0 ? 1e-12 * f.cwiseAbs().maxCoeff() : 0;
  std::vector<Index> positive, zero, wrong;
  for (Index p = 0; p < m; ++p) (near.size() == 0 || near[p] > 0 ? positive : zero).push_back(p);
  Vector<double> w = Vector<double>::Zero(m);
  std::size_t fewest = m + 1;
  int left = kFullExchanges;
  for (;;) {
    w.setZero();
    if (!positive.empty()) {
      const Cholesky factor(A, positive, workers, ridge);
      if (!factor.definite()) throw std::logic_error("nonnegative_least_squares: H is not positive definite");
      const Matrix<double> right = f(positive);
      w(positive) = factor.solve(right, workers).col(0);
    }
    wrong.clear();
    for (const Index p : positive)
      if (w[p] < 0) wrong.push_back(p);
    for (const Index p : zero)
      if (A.row(p) * w - f[p] < -rounding) wrong.push_back(p);
    if (wrong.empty()) return w;
    if (wrong.size() < fewest) {
      fewest = wrong.size();
      left = kFullExchanges;
    } else if (--left < 0) {
      wrong = {*std::max_element(wrong.begin(), wrong.end())};
    }
    std::vector<bool> is_positive(m, false);
    for (const Index p : positive) is_positive[p] = true;
    for (const Index p : wrong) is_positive[p] = !is_positive[p];
    positive.clear();
    zero.clear();
    for (Index p = 0; p < m; ++p) (is_positive[p] ? positive : zero).push_back(p);
  }
}

}  // namespace kvreplay
