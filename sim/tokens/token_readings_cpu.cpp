#include "sim/tokens/expected_attention.hpp"
#include "sim/tokens/keydiff.hpp"
#include "sim/tokens/repeat_attention.hpp"
#include "sim/tokens/row_norms.hpp"
#include "sim/tokens/token_readings.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

namespace kvreplay {

template <class T>
const PreparedValues<T>& CpuReadings<T>::values() {
  if (!values_) values_ = prepare_values(group_, workers_);
  return *values_;
}

template <class T>
std::vector<std::vector<ColumnTotals>> CpuReadings<T>::column_totals(
    std::span<const ColumnRequest> requests) {
  const bool weights_alone = std::all_of(requests.begin(), requests.end(), [](const ColumnRequest& request) {
    return request.columns == ColumnSet::weights;
  });
  const PreparedValues<T> none, &values = weights_alone ? none : this->values();
  std::vector<std::vector<ColumnTotals>> totals;
  for (const auto& [rows, columns] : requests)
    totals.push_back(kvreplay::column_totals(group_, values, rows, columns, workers_));
  return totals;
}

template <class T>
Vector<double> CpuReadings<T>::value_squares() {
  return values().value_sq.template cast<double>();
}

template <class T>
std::vector<CaoteScores> CpuReadings<T>::caote(const std::vector<ColumnTotals>& totals) {
  return caote_scores(values(), totals, workers_);
}

template <class T>
Vector<double> CpuReadings<T>::key_norms() {
  return row_norms(group_.k, group_.l, workers_);
}

template <class T>
Vector<double> CpuReadings<T>::keydiff() {
  std::vector<Index> all(group_.l);
  std::iota(all.begin(), all.end(), Index{0});
  KeyDiff<T> keydiff(group_.k, group_.l, workers_);
  keydiff.add(all);
  return keydiff.scores(all);
}

template <class T>
Matrix<double> CpuReadings<T>::expected_attention() {
  return expected_attention_scores(group_, {}, workers_);
}

template <class T>
Vector<double> CpuReadings<T>::projected_value_norms(Index g) {
  return kvreplay::projected_value_norms(group_, g, workers_);
}

template <class T>
Matrix<double> CpuReadings<T>::repeat_attention() {
  return largest_repeat_attention(group_, workers_);
}

template <class T>
std::vector<LossTotals> CpuReadings<T>::loss_totals(const RowGradients<T>& gradients, RowRange rows) {
  return kvreplay::loss_totals(group_, values(), gradients, rows, workers_);
}

template class CpuReadings<float>;
template class CpuReadings<double>;

}  // namespace kvreplay
