#pragma once

#include "analysis/eviction/compensation_columns.hpp"
#include "analysis/eviction/compensation_plan.hpp"
#include "analysis/eviction/head_compensation.hpp"
#include "analysis/measure/measured_layer.hpp"
#include "analysis/run/stage.hpp"

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvreplay {

/// What kept tokens make up for evicted ones: the part of `evict` that works on what its evictions keep.
///   compensation.csv, layer_XX/compensated/, maps/
class CompensatedCases {
 public:
  /// The figures of a head begin at `first_column` of those of the whole stage.
  CompensatedCases(const Dump& dump, const EvictionOptions& options, const EvictionPlan& evictions,
                   Index first_column, const Compute& compute);

  const CompensationPlan& plan() const { return plan_; }
  const CompensationColumns& columns() const { return columns_; }
  bool any() const { return !plan_.cases.empty(); }
  Index figures_per_head() const { return columns_.count(); }
  std::size_t figures_per_layer() const { return any() ? columns_.losses().per_layer() : 0; }

  void begin_layer();
  /// `kept` is what the evictions keep of this head, by case; `figures` are those of the whole stage. What
  /// the caches hold, by case.
  template <class T>
  std::vector<Compensated> head(const HeadGroup<T>& group, std::span<const KeptSet* const> kept,
                                std::span<double> figures);
  void end_layer(Index layer, const LayerFigures& figures);
  void write_layer(const ResultFolder& folder, Index layer) const;
  void save_head(Index kv_head, ByteWriter& out) const;
  void load_head(Index kv_head, ByteReader& in);

  /// The number of rows of compensation.csv.
  std::size_t write_tables(const ResultFolder& folder, const HeadFigures& figures) const;
  std::string report(const HeadFigures& figures) const;

 private:
  /// What a cache holds, as it is written.
  struct Held {
    std::vector<std::int32_t> tokens;
    std::vector<float> bias, values, keys;
  };
  void keep(std::size_t which, Index kv_head, const Compensated& held);
  void put_terms(std::size_t which, RowSet rows, const std::optional<ErrorSplit>& split,
                 std::span<double> figures) const;
  /// With those of layers as a whole that are not the evictions'.
  HeadFigures own_figures(const HeadFigures& figures) const;

  const Dump& dump_;
  const EvictionPlan& evictions_;
  Compute compute_;
  CompensationPlan plan_;
  CompensationColumns columns_;
  MeasuredLayer measured_;
  std::vector<std::vector<Held>> held_;  // [cases][n_kv]
};

}  // namespace kvreplay
