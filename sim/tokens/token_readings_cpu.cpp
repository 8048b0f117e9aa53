#include "sim/overflow.hpp"
#include "sim/simd/panel_gemm.hpp"
#include "sim/softmax_lanes.hpp"
#include "sim/tokens/expected_attention.hpp"
#include "sim/tokens/gated_importance.hpp"
#include "sim/tokens/keydiff.hpp"
#include "sim/tokens/row_norms.hpp"
#include "sim/tokens/token_readings.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay {

namespace {

constexpr Index kRepeatPanelsPerItem = 8;

/// One thread's work on panels of one query head's rows.
template <class T>
class RepeatPanels {
 public:
  static constexpr Index W = kPanelWidth<T>;
  using Rows = Lanes<T>;
  using RowsMap = Eigen::Map<Rows>;

  /// norms: [R_ref, 1], or null.
  RepeatPanels(const HeadGroup<T>& group, Index g, const HeadMatrix<T>* norms)
      : group_(group),
        g_(g),
        norms_(norms),
        sink_(sink_logit(group, g)),
        q_(static_cast<std::size_t>(group.d() * W)),
        z_(static_cast<std::size_t>(group.l * W)),
        largest(Vector<T>::Constant(group.l, kHidden)) {}

  void add(Index panel) {
    const Index first = panel * W, count = std::min(W, group_.R_ref() - first), l = group_.l;
    const Index begin = group_.repeat_visible(first).begin;  // later rows see no more
    if (begin == l) return;
    form_logits(first, count, begin);
    const auto hide = [&](T value) {
      for (Index r = 0; r < count; ++r) {
        const Index sees = group_.repeat_visible(first + r).begin;
        for (Index p = begin; p < sees; ++p) row(p)[r] = value;
      }
    };
    hide(0);  // what nobody sees may overflow
    require_finite(count, begin);
    hide(kHidden);

    Rows top = Rows::Constant(sink_);
    for (Index p = begin; p < l; ++p) top = top.max(row(p));
    const Rows shift = (top == kHidden).select(Rows::Zero(), top);
    Rows log_sum = sum_of_weights(begin, shift).log().template cast<T>();
    for (Index r = 0; norms_ != nullptr && r < count; ++r) {
      const T norm = (*norms_)(first + r, 0);
      log_sum[r] = norm > 0 ? log_sum[r] + std::log(norm) : std::numeric_limits<T>::infinity();
    }
    for (Index p = begin; p < l; ++p)  // in two steps: near the top the first has no rounding
      largest[p] = std::max(largest[p], ((row(p) - shift) - log_sum).head(count).maxCoeff());
  }

 private:
  static constexpr T kHidden = -std::numeric_limits<T>::infinity();

  RowsMap row(Index p) { return RowsMap(z_.data() + p * W); }

  /// z [l][W] of the tokens from `begin` on, capped; of rows that are not there it is 0.
  void form_logits(Index first, Index count, Index begin) {
    const Index d = group_.d();
    std::fill(q_.begin(), q_.end(), T{0});
    const T scale = static_cast<T>(group_.rule.scale);
    for (Index r = 0; r < count; ++r)
      for (Index c = 0; c < d; ++c) q_[c * W + r] = scale * group_.q_ref[g_](first + r, c);
    panel_gemm(group_.l - begin, d, group_.k.data() + begin * d, d, q_.data(), z_.data() + begin * W);
    if (!group_.rule.softcap) return;
    const T cap = static_cast<T>(*group_.rule.softcap);
    for (Index p = begin; p < group_.l; ++p) {
      // A logit beyond T is refused, not capped.
      const Rows raw = row(p);
      row(p) = cap * (raw / cap).tanh() + raw * T{0};
    }
  }

  void require_finite(Index count, Index begin) {
    Rows zero = Rows::Zero();
    for (Index p = begin; p < group_.l; ++p) zero += row(p) * T{0};
    for (Index r = 0; r < count; ++r)
      if (zero[r] != T{0}) report_overflow(group_, g_, "the second reading");
  }

  /// The sum of exp(z - shift) over tokens and sink that a row sees; 1 for a row that sees nothing.
  Eigen::Array<double, W, 1> sum_of_weights(Index begin, const Rows& shift) {
    const Eigen::Array<double, W, 1> sum =
        weights_at<T>(Rows::Constant(sink_) - shift).template cast<double>() +
        sum_of_lanes<T>(begin, group_.l, [&](Index p) { return weights_at<T>(row(p) - shift); });
    return (sum > 0).select(sum, 1);
  }

  const HeadGroup<T>& group_;
  Index g_;
  const HeadMatrix<T>* norms_;
  T sink_;
  std::vector<T> q_, z_;

 public:
  Vector<T> largest;  ///< [l], logarithms
};

}  // namespace

template <class T>
Matrix<double> largest_repeat_attention(const HeadGroup<T>& group, const std::vector<HeadMatrix<T>>& norms,
                                        Workers& workers) {
  const Index G = group.G(), l = group.l, panels = panels_of<T>(group.R_ref()),
              items = div_up(panels, kRepeatPanelsPerItem);
  Matrix<T> largest = Matrix<T>::Constant(G, l, -std::numeric_limits<T>::infinity());
  std::mutex mutex;  // in whatever order they come, a largest number is the same
  workers.parallel_for(G * items, [&](Index item) {
    const Index g = item / items, first = item % items * kRepeatPanelsPerItem;
    RepeatPanels<T> mine(group, g, norms.empty() ? nullptr : &norms[g]);
    for (Index panel = first; panel < std::min(first + kRepeatPanelsPerItem, panels); ++panel)
      mine.add(panel);
    const std::scoped_lock lock(mutex);
    largest.row(g) = largest.row(g).cwiseMax(mine.largest.transpose());
  });
  const Matrix<double> logarithm = largest.template cast<double>();
  // The logarithm of a weight may be rounded to just above 0.
  return norms.empty() ? Matrix<double>(logarithm.array().min(0.0).exp())
                       : Matrix<double>(logarithm.array().exp());
}

template Matrix<double> largest_repeat_attention(const HeadGroup<float>&,
                                                 const std::vector<HeadMatrix<float>>&, Workers&);
template Matrix<double> largest_repeat_attention(const HeadGroup<double>&,
                                                 const std::vector<HeadMatrix<double>>&, Workers&);

template <class T>
const PreparedValues<T>& TokenReadings<T>::values() {
  if (!values_) values_ = prepare_values(group_, workers_);
  return *values_;
}

template <class T>
std::vector<std::vector<ColumnTotals>> TokenReadings<T>::column_totals(
    std::span<const ColumnRequest> requests) {
  const PreparedValues<T> none, &values = needs_outputs(requests) ? this->values() : none;
  std::vector<std::vector<ColumnTotals>> totals;
  for (const auto& [rows, columns] : requests)
    totals.push_back(kvreplay::column_totals(group_, values, rows, columns, workers_));
  return totals;
}

template <class T>
Vector<double> TokenReadings<T>::value_squares() {
  return values().value_sq.head(group_.l).template cast<double>();
}

template <class T>
std::vector<CaoteScores> TokenReadings<T>::caote(const std::vector<ColumnTotals>& totals) {
  return caote_scores(values(), totals, workers_);
}

template <class T>
Vector<double> TokenReadings<T>::key_norms() {
  return row_norms(group_.k, group_.l, workers_);
}

template <class T>
Vector<double> TokenReadings<T>::keydiff() {
  std::vector<Index> all(group_.l);
  std::iota(all.begin(), all.end(), Index{0});
  KeyDiff<T> keydiff(group_.k, workers_);
  keydiff.add(all);
  return keydiff.scores(all);
}

template <class T>
Matrix<double> TokenReadings<T>::expected_attention() {
  return expected_attention_scores(group_, {}, workers_);
}

template <class T>
Vector<double> TokenReadings<T>::projected_value_norms(Index g) {
  return kvreplay::projected_value_norms(group_, g, workers_);
}

template <class T>
Matrix<double> TokenReadings<T>::gated_importance(RowRange rows) {
  return kvreplay::gated_importance(group_, rows, workers_);
}

template <class T>
Matrix<double> TokenReadings<T>::repeat_attention() {
  return largest_repeat_attention<T>(group_, {}, workers_);
}

template <class T>
std::vector<LossTotals> TokenReadings<T>::loss_totals(const RowGradients<T>& gradients, RowRange rows) {
  return kvreplay::loss_totals(group_, values(), gradients, rows, workers_);
}

template class TokenReadings<float>;
template class TokenReadings<double>;

}  // namespace kvreplay
