#include "sim/tokens/value_norms.hpp"

#include <algorithm>

namespace kvreplay {
namespace {

/// sqrt(v M v^T) of the candidates; M empty: the identity.
template <class T>
Vector<double> norms(const HeadGroup<T>& group, const Matrix<double>& gram, Workers& workers) {
  constexpr Index kTokensPerItem = 256;
  Vector<double> result(group.l);
  workers.parallel_for((group.l + kTokensPerItem - 1) / kTokensPerItem, [&](Index chunk) {
    const Index first = chunk * kTokensPerItem, n = std::min(kTokensPerItem, group.l - first);
    const Matrix<double> v = group.v.middleRows(first, n).template cast<double>();
    Vector<double> squares;
    if (gram.size() > 0)
      squares = (v * gram).cwiseProduct(v).rowwise().sum();
    else
      squares = v.rowwise().squaredNorm();
    result.segment(first, n) = squares.cwiseMax(0.0).cwiseSqrt();
  });
  return result;
}

}  // namespace

template <class T>
Vector<double> value_norms(const HeadGroup<T>& group, Workers& workers) {
  return norms(group, {}, workers);
}

template <class T>
Vector<double> projected_value_norms(const HeadGroup<T>& group, Index g, Workers& workers) {
  if (group.wo.empty()) return value_norms(group, workers);
  const Matrix<double> wo = group.wo[static_cast<std::size_t>(g)].template cast<double>();
  return norms(group, Matrix<double>(wo * wo.transpose()), workers);  // ||v W||^2 = v (W W^T) v^T
}

template Vector<double> value_norms(const HeadGroup<float>&, Workers&);
template Vector<double> value_norms(const HeadGroup<double>&, Workers&);
template Vector<double> projected_value_norms(const HeadGroup<float>&, Index, Workers&);
template Vector<double> projected_value_norms(const HeadGroup<double>&, Index, Workers&);

}  // namespace kvreplay
