#pragma once

#include "analysis/eviction/eviction_plan.hpp"
#include "analysis/measure/measured_columns.hpp"
#include "sim/kept_set.hpp"

#include <array>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay {

/// The figures of all heads as tables: evictions.csv, and from the same figures decode.csv and diff.csv.
class EvictionTable : public MeasuredTable<EvictionPlan, EvictionColumns> {
 public:
  EvictionTable(const EvictionPlan& plan, const EvictionColumns& columns, const HeadFigures& figures,
                bool with_layer_output);

  /// evictions.csv with its maps/.
  const MetricTable& metrics() const { return metrics_; }
  const std::vector<Index>& layers() const { return figures_.layers; }
  /// A metric of a case; null where the table has none.
  const MetricEntry* entry(std::size_t which, EvictionFigure metric, RowSet rows) const {
    return metrics_.of_case(plan_.cases[which].file_name(), name_of(metric), rows);
  }
  /// The model's; empty where the table has none.
  std::optional<double> of_model(std::size_t which, EvictionFigure metric, RowSet rows) const;
  /// Tokens that both cases of a pair keep over all heads, as a share of the larger of the two kept sets; nan
  /// where both are empty.
  double shared(std::size_t pair) const;
  /// Bytes of the whole prompt over all heads, as the dump stores it or, with formats, in 16 bits.
  double prompt_bytes() const { return sum({}, columns_.of(EvictionColumns::prompt_bytes)); }
  /// A case's caches as a share of prompt_bytes().
  double share_of_bytes(std::size_t which) const;

  /// evictions.csv, decode.csv, decode/, diff.csv, maps/; the number of rows of evictions.csv.
  std::size_t write(const ResultFolder& folder) const;
  /// The number of tokens that a case keeps, as text; of a threshold "112 of 900 (mean of 90 heads, 3 of
  /// which keep none)".
  std::string kept_text(std::size_t which) const;
  /// Tokens that tie at a case's cut, by kTiesIn, the mean over heads; nothing where none are counted.
  std::optional<std::array<double, kTieNumbers>> ties(std::size_t which) const;
  /// Ties of all cases, by case and number format.
  Json ties() const;

 private:
  MetricTable computed() const;
  std::optional<double> value(std::size_t which, Scope scope, EvictionFigure metric, RowSet rows) const;
  std::optional<double> kept(std::size_t which, Scope scope) const;
  double common(std::size_t pair, Scope scope) const;
  std::optional<double> residual_error(std::size_t which, Scope scope, RowSet rows) const;
  std::optional<double> excess(std::size_t which, Scope scope, RowSet rows, EvictionBase reference) const;
  void write_decoding(const ResultFolder& folder) const;
  void write_differences(const ResultFolder& folder) const;

  MetricTable metrics_;
};

/// layer_XX/diff/<policy>-<first>-<second>-<phase>-<budget>.npy, int32 [n_kv, l]: 1 where only the first
/// semantics keeps a token, -1 where only the second does. kept is [cases][n_kv].
void write_kept_differences(const ResultFolder& folder, Index layer, const EvictionPlan& plan,
                            const std::vector<std::vector<KeptSet>>& kept);

/// A short plain text: the output error and the recall of every policy at every budget over the whole model,
/// and how far semantics differ.
std::string eviction_report(const EvictionPlan& plan, const EvictionTable& table);

}  // namespace kvreplay
