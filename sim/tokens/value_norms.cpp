#include "sim/tokens/value_norms.hpp"

#include "sim/simd/panel_gemm.hpp"

#include <algorithm>
#include <vector>

namespace kvreplay {
namespace {

/// Calls work(v, out) for the candidates' values [n, d_v] in float64, a piece at a time: `out` takes a number
/// for each.
template <class T, class Work>
Vector<double> for_values(const HeadGroup<T>& group, Workers& workers, const Work& work) {
  constexpr Index kTokensPerItem = 256;
  Vector<double> result(group.l);
  workers.parallel_for((group.l + kTokensPerItem - 1) / kTokensPerItem, [&](Index piece) {
    const Index first = piece * kTokensPerItem, n = std::min(kTokensPerItem, group.l - first);
    const Matrix<double> v = group.v.middleRows(first, n).template cast<double>();
    work(v, result.segment(first, n));
  });
  return result;
}

/// The columns of M in panels, zeros after the last: [panels][rows][W].
std::vector<double> panels_of(const Matrix<double>& M) {
  constexpr Index W = kPanelWidth<double>;
  const Index panels = (M.cols() + W - 1) / W;
  std::vector<double> packed(static_cast<std::size_t>(panels * M.rows() * W), 0.0);
  for (Index c = 0; c < M.cols(); ++c)
    for (Index r = 0; r < M.rows(); ++r)
      packed[static_cast<std::size_t>((c / W * M.rows() + r) * W + c % W)] = M(r, c);
  return packed;
}

}  // namespace

template <class T>
Vector<double> value_norms(const HeadGroup<T>& group, Workers& workers) {
  return for_values(group, workers, [](const Matrix<double>& v, auto out) { out = v.rowwise().norm(); });
}

template <class T>
Vector<double> projected_value_norms(const HeadGroup<T>& group, Index g, Workers& workers) {
  if (group.wo.empty()) return value_norms(group, workers);
  constexpr Index W = kPanelWidth<double>;
  const Matrix<double> wo = group.wo[static_cast<std::size_t>(g)].template cast<double>();
  const Index d_v = wo.rows();
  const std::vector<double> gram = panels_of(wo * wo.transpose());  // ||v W||^2 = v (W W^T) v^T
  return for_values(group, workers, [&](const Matrix<double>& v, auto out) {
    Matrix<double> product(v.rows(), W);
    Vector<double> squares = Vector<double>::Zero(v.rows());
    for (Index c = 0; c < d_v; c += W) {
      panel_gemm(v.rows(), d_v, v.data(), d_v, gram.data() + c * d_v, product.data());
      const Index columns = std::min(W, d_v - c);
      squares += product.leftCols(columns).cwiseProduct(v.middleCols(c, columns)).rowwise().sum();
    }
    out = squares.cwiseMax(0.0).cwiseSqrt();
  });
}

template Vector<double> value_norms(const HeadGroup<float>&, Workers&);
template Vector<double> value_norms(const HeadGroup<double>&, Workers&);
template Vector<double> projected_value_norms(const HeadGroup<float>&, Index, Workers&);
template Vector<double> projected_value_norms(const HeadGroup<double>&, Index, Workers&);

}  // namespace kvreplay
