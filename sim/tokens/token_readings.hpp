#pragma once

#include "sim/head_group.hpp"
#include "sim/schedule.hpp"
#include "sim/tokens/caote.hpp"
#include "sim/tokens/column_totals.hpp"
#include "sim/tokens/loss_totals.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <optional>
#include <set>
#include <span>
#include <vector>

// Token metrics of any hardware: what is read of a head group's numbers, and what is made of it.

namespace kvreplay {

/// What a head group is asked for, wherever its numbers lie. Each takes O(l d) or more and is asked once, or
/// once for each query head or set of rows.
template <class T>
class TokenReadings {
 public:
  TokenReadings() = default;
  TokenReadings(const TokenReadings&) = delete;
  TokenReadings& operator=(const TokenReadings&) = delete;
  virtual ~TokenReadings() = default;

  /// column_totals() for each request: [requests][G].
  virtual std::vector<std::vector<ColumnTotals>> column_totals(std::span<const ColumnRequest> requests) = 0;
  /// ||v_p||^2 of the candidates, [l].
  virtual Vector<double> value_squares() = 0;
  /// caote_scores() of the window's totals, [G].
  virtual std::vector<CaoteScores> caote(const std::vector<ColumnTotals>& totals) = 0;
  /// ||k_p|| of the candidates, [l].
  virtual Vector<double> key_norms() = 0;
  /// KeyDiff among all candidates, [l].
  virtual Vector<double> keydiff() = 0;
  /// expected_attention_scores() of the metric's form, [G, l].
  virtual Matrix<double> expected_attention() = 0;
  /// sim/tokens/row_norms.hpp, [l].
  virtual Vector<double> projected_value_norms(Index g) = 0;
  /// largest_repeat_attention(), [G, l].
  virtual Matrix<double> repeat_attention() = 0;
  /// kvreplay::loss_totals(), [G].
  virtual std::vector<LossTotals> loss_totals(const RowGradients<T>& gradients, RowRange rows) = 0;
};

/// All that is read on the CPU.
template <class T>
class CpuReadings : public TokenReadings<T> {
 public:
  /// Refers to all until it is gone.
  CpuReadings(const HeadGroup<T>& group, Workers& workers) : group_(group), workers_(workers) {}

  std::vector<std::vector<ColumnTotals>> column_totals(std::span<const ColumnRequest> requests) override;
  Vector<double> value_squares() override;
  std::vector<CaoteScores> caote(const std::vector<ColumnTotals>& totals) override;
  Vector<double> key_norms() override;
  Vector<double> keydiff() override;
  Matrix<double> expected_attention() override;
  Vector<double> projected_value_norms(Index g) override;
  Matrix<double> repeat_attention() override;
  std::vector<LossTotals> loss_totals(const RowGradients<T>& gradients, RowRange rows) override;

 private:
  const PreparedValues<T>& values();

  const HeadGroup<T>& group_;
  Workers& workers_;
  std::optional<PreparedValues<T>> values_;
};

/// Token metrics on their way: those that are read, and the rows on which float32 loses attention.
struct ReadMetrics {
  TokenMetrics metrics;
  std::set<MetricRows> lost;
};
template <class T>
ReadMetrics read_metrics(TokenReadings<T>& readings, const HeadGroup<T>& group, const TokenOptions& options,
                         Workers& workers);

/// The same with CpuReadings.
template <class T>
ReadMetrics read_metrics_cpu(const HeadGroup<T>& group, const TokenOptions& options, Workers& workers) {
  CpuReadings<T> readings(group, workers);
  return read_metrics(readings, group, options, workers);
}

/// With what is left to the CPU on any hardware: leverage, and float64 where float32 loses attention.
/// Throws InputError where a number is not finite.
template <class T>
TokenMetrics finished_metrics(ReadMetrics read, const HeadGroup<T>& group, const TokenOptions& options,
                              Workers& workers);

}  // namespace kvreplay
