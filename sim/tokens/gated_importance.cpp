#include "sim/tokens/gated_importance.hpp"

#include "sim/simd/panel_gemm.hpp"
#include "sim/softmax_lanes.hpp"
#include "sim/tokens/column_totals.hpp"
#include "sim/tokens/row_norms.hpp"
#include "sim/tokens/value_rows.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace kvreplay {
namespace {

/// One query head's weights on the tokens [begin, end): [tokens][W], of any number in what a row does not
/// see.
template <class T>
std::vector<T> panel_weights(const HeadGroup<T>& group, const HeadRows<T>& head, Index panel, Index begin,
                             Index end) {
  constexpr Index W = kPanelWidth<T>;
  const Index d = group.d();
  std::vector<T> weights(static_cast<std::size_t>((end - begin) * W));
  panel_gemm(end - begin, d, group.k.data() + begin * d, d, head.in.q_panels + panel * d * W, weights.data());
  const Eigen::Map<const Lanes<T>> lse(head.row_constants.get() + (panel * kRowConstants + kLse) * W);
  for (Index t = 0; t < end - begin; ++t) {
    Eigen::Map<Lanes<T>> z(weights.data() + t * W);
    if (head.in.softcap > 0) z = head.in.softcap * (z / head.in.softcap).tanh();
    z = weights_at<T>(z - lse);
  }
  return weights;
}

/// The largest products of one query head's tokens from `first` on. A product that cannot be its token's
/// largest is not formed.
template <class T>
class LargestProducts {
 public:
  LargestProducts(const HeadGroup<T>& group, Index g, const ProjectedNorms<T>& norms, double most,
                  Index first, const Eigen::Ref<Eigen::RowVectorXd>& largest)
      : group_(group),
        g_(g),
        norms_(norms),
        most_(most),
        first_(first),
        largest_(largest),
        gated_(kVectorsAtOnce, group.d_v()) {}

  /// Adds the importance to row i of token p with weight a.
  void add(Index p, Index i, double a) {
    gated_.row(count_) = group_.v.row(p).cwiseProduct(group_.gate_row(g_, i));
    double square = 0;
    value_rows_simd<T>().row_squares(gated_.row(count_).data(), 1, group_.d_v(), &square);
    if (a * most_ * std::sqrt(square) <= largest_[p - first_]) return;
    of_[count_++] = {p, a};
    if (count_ == kVectorsAtOnce) finish();
  }
  /// Takes in what was added.
  void finish() {
    std::array<double, kVectorsAtOnce> squares;
    norms_.squares(gated_.data(), count_, squares.data());
    for (Index n = 0; n < count_; ++n) {
      const double found = of_[n].a * std::sqrt(squares[n]);
      double& largest = largest_[of_[n].p - first_];
      largest = std::isnan(found) ? std::numeric_limits<double>::infinity() : std::max(largest, found);
    }
    count_ = 0;
  }

 private:
  static constexpr Index kVectorsAtOnce = 96;
  struct Weight {
    Index p;
    double a;
  };

  const HeadGroup<T>& group_;
  Index g_;
  const ProjectedNorms<T>& norms_;
  double most_;
  Index first_;
  Eigen::Ref<Eigen::RowVectorXd> largest_;
  Matrix<T> gated_;  // values times gates, [kVectorsAtOnce, d_v]
  std::array<Weight, kVectorsAtOnce> of_;
  Index count_ = 0;
};

}  // namespace

template <class T>
Matrix<double> gated_importance(const HeadGroup<T>& group, RowRange rows, Workers& workers) {
  constexpr Index W = kPanelWidth<T>, kTokensPerItem = 144;
  const Index G = group.G();
  std::vector<ProjectedNorms<T>> norms;
  std::vector<double> most;
  for (const Matrix<T>& wo : group.wo) most.push_back(norms.emplace_back(wo, workers).most());
  const std::vector<HeadRows<T>> heads =
      softmax_rows(group, PreparedValues<T>{}, rows, {.outputs = false}, workers);

  Matrix<double> largest = Matrix<double>::Zero(G, group.l);
  const Index seen = group.first_visible(rows.begin),
              seen_end = std::min(group.l, group.end_visible(rows.end - 1));
  workers.parallel_for(G * div_up(std::max<Index>(seen_end - seen, 0), kTokensPerItem), [&](Index item) {
    const Index g = item % G, begin = seen + item / G * kTokensPerItem,
                end = std::min(begin + kTokensPerItem, seen_end);
    const HeadRows<T>& head = heads[g];
    LargestProducts<T> products(group, g, norms[g], most[g], begin,
                                largest.row(g).segment(begin, end - begin));
    for (Index panel = 0; panel < head.in.panels(); ++panel) {
      const std::vector<T> weights = panel_weights(group, head, panel, begin, end);
      for (Index r = 0; r < head.in.panel_rows(panel); ++r) {
        const Index i = head.in.panel_first(panel) + r;
        const LargestScores& top = head.largest[panel * W + r];
        for (Index p = std::max(begin, group.first_visible(i)); p < std::min(end, group.end_visible(i));
             ++p) {
          const double a =
              p == top.at ? top[RowScore::attention] : static_cast<double>(weights[(p - begin) * W + r]);
          if (a > 0) products.add(p, i, a);
        }
      }
    }
    products.finish();
  });
  return largest;
}

template Matrix<double> gated_importance(const HeadGroup<float>&, RowRange, Workers&);
template Matrix<double> gated_importance(const HeadGroup<double>&, RowRange, Workers&);

}  // namespace kvreplay
