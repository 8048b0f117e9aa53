#pragma once

#include "analysis/eviction/eviction_columns.hpp"
#include "analysis/eviction/eviction_plan.hpp"
#include "analysis/eviction/head_evictions.hpp"
#include "analysis/eviction/layer_outputs.hpp"
#include "analysis/run/stage.hpp"

#include <memory>
#include <string>
#include <vector>

namespace kvreplay {

/// Policies x budgets x phases: kept sets and their exact errors.
///   layer_XX/kept/, evictions.csv, decode.csv, decode/, maps/, and with several semantics diff.csv,
///   layer_XX/diff/.
class EvictStage final : public Stage {
 public:
  EvictStage(const Dump& dump, const EvictionOptions& options, const Compute& compute);

  std::string_view name() const override { return "evict"; }
  std::vector<std::string> on_cpu() const override;
  Json options() const override;
  std::vector<LeftOut> left_out() const override { return plan_.left_out; }
  std::vector<OptionText> notes() const override { return plan_.notes; }

  std::size_t figures_per_head() const override { return static_cast<std::size_t>(columns_.count()); }
  void begin_layer(Index layer, Workers& workers) override;
  void head(const HeadGroup<float>& group, Workers& workers, std::span<double> figures) override;
  void head(const HeadGroup<double>& group, Workers& workers, std::span<double> figures) override;
  void end_layer(const ResultFolder& folder, Index layer, Workers& workers,
                 Eigen::Ref<Matrix<double>> figures) override;
  void save_head(Index kv_head, ByteWriter& out) const override;
  void load_head(Index kv_head, ByteReader& in) override;
  Json write_tables(const ResultFolder& folder, const HeadFigures& figures) override;
  std::string report(const HeadFigures& figures) const override;

 private:
  template <class T>
  void rank_layer(Index layer, Workers& workers);
  template <class T>
  void compute(const HeadGroup<T>& group, Workers& workers, std::span<double> figures);
  template <class T>
  void keep_vectors(HeadEvictions<T>& head, Index first_query_head);
  const Dump& dump_;
  EvictionOptions options_;
  EvictionPlan plan_;
  EvictionColumns columns_;
  Precision precision_;
  std::shared_ptr<const Backend> backend_;
  LayerScores layer_scores_;
  std::vector<std::vector<KeptSet>> kept_;  // [cases][n_kv, or n_q with --per-query-head]
  LayerStore store_;
};

}  // namespace kvreplay
