#pragma once

#include "analysis/eviction/compensated_cases.hpp"
#include "analysis/eviction/eviction_plan.hpp"
#include "analysis/eviction/eviction_tables.hpp"
#include "analysis/eviction/head_evictions.hpp"
#include "analysis/measure/case_outputs.hpp"
#include "analysis/measure/once_per_cache.hpp"
#include "analysis/run/stage.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace kvreplay {

/// Policies x budgets x phases: kept sets and their exact errors.
///   layer_XX/kept/, where nothing is evicted read/, where a phase decodes last_rows/, with channels pruned/,
///   evictions.csv, decode.csv, decode/, maps/, and with several semantics diff.csv, layer_XX/diff/; with
///   something that compensates also what CompensatedCases writes.
class EvictStage final : public Stage {
 public:
  EvictStage(const Dump& dump, const EvictionOptions& options, const Compute& compute);
  /// A stage for an existing plan, as from plan_of_kept().
  EvictStage(const Dump& dump, const EvictionOptions& options, EvictionPlan plan, const Compute& compute);

  std::string_view name() const override { return "evict"; }
  std::vector<std::string> on_cpu() const override;
  Json options() const override;
  std::vector<LeftOut> left_out() const override { return plan_.left_out; }
  std::vector<OptionText> notes() const override { return plan_.notes; }
  std::optional<OptionText> price() const override { return compensations_.plan().price; }

  std::size_t figures_per_head() const override {
    return static_cast<std::size_t>(columns_.count() + compensations_.figures_per_head());
  }
  std::size_t figures_per_layer() const override {
    return columns_.losses().per_layer() + compensations_.figures_per_layer();
  }
  void begin_layer(Index layer) override;
  void head(const HeadGroup<float>& group, std::span<double> figures) override;
  void head(const HeadGroup<double>& group, std::span<double> figures) override;
  void end_layer(const ResultFolder& folder, Index layer, LayerFigures figures) override;
  /// Fills in the figures that need all heads of the layer, as end_layer() does, without files.
  void finish_layer(Index layer, LayerFigures figures);
  Json write_tables(const ResultFolder& folder, const HeadFigures& figures) override;
  std::string report(const HeadFigures& figures) const override;

  const EvictionPlan& plan() const { return plan_; }
  /// `figures` and this must outlive it.
  EvictionTable table(const HeadFigures& figures) const;

 private:
  /// Caches of a layer: KV heads, or query heads with per_query_head.
  Index cache_rows() const { return plan_.per_query_head ? dump_.shape().n_q : dump_.shape().n_kv; }
  template <class T>
  void rank_layer(Index layer);
  /// Results of all cases on one cache.
  template <class T>
  struct Chosen {
    HeadCaches<T> caches;
    Vector<double> importance;  // of its tokens to all that read it
    std::vector<double> ties;   // [cases, kTieNumbers] where they are counted
  };
  template <class T>
  Chosen<T> choose(const HeadGroup<T>& group, Index part) const;
  template <class T>
  void compute(const HeadGroup<T>& group, std::span<double> figures);

  EvictionOptions options_;
  EvictionPlan plan_;
  EvictionColumns columns_;
  LayerScores layer_scores_;
  KeptLayer kept_, pruned_;
  CaseRows<double> key_costs_;
  CaseRows<std::int32_t> last_rows_;
  CaseRows<std::byte> read_;
  MeasuredLayer measured_;
  CompensatedCases compensations_;
  std::tuple<OncePerCache<Chosen<float>>, OncePerCache<Chosen<double>>> chosen_;  // of shared caches
};

/// Figures that EvictStage computes for one layer: [n_kv, figures_per_head] and [figures_per_layer]. `group`
/// returns KV heads 0 .. n_kv - 1 in turn. The stage is begun and finished for this layer only.
struct LayerEvictions {
  Matrix<double> heads;
  std::vector<double> whole;
};
template <class T>
LayerEvictions layer_evictions(
    EvictStage& stage, Index layer, Index n_kv,
    const std::function<std::shared_ptr<const HeadGroup<T>>(Index kv_head)>& group);
/// Layers in their order, as HeadFigures.
HeadFigures joined(const std::vector<Index>& layers, std::span<const LayerEvictions* const> parts);

/// The options with CacheFormatOptions::worst_first of the formats that need it: each is measured once more
/// of the whole prompt, and layers are ordered by loss_layer on the decoding steps (else the window), without
/// gradients by output_error. Cost: a pass over the dump.
EvictionOptions with_worst_layers(const Dump& dump, EvictionOptions options, const Compute& compute);

}  // namespace kvreplay
