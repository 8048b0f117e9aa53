#pragma once

#include "analysis/channels/channel_plan.hpp"
#include "analysis/channels/head_channels.hpp"
#include "analysis/measure/case_outputs.hpp"
#include "analysis/measure/measured_columns.hpp"
#include "analysis/measure/once_per_cache.hpp"
#include "analysis/run/stage.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay {

/// channels.csv of the figures of all heads, with maps/.
MetricTable channel_table(const ChannelPlan& plan, const ChannelColumns& columns, const HeadFigures& figures,
                          bool with_layer_output);

/// The report at the end of `channels`: the errors of every method at every ratio, with the gain over think.
std::string channel_report(const ChannelPlan& plan, const MetricTable& table);

/// Analysis of key channels: their interaction, the channels that each method prunes, and the exact cost of
/// pruning them. Files:
///   layer_XX/channels/, channels.csv, maps/.
class ChannelStage final : public Stage {
 public:
  ChannelStage(const Dump& dump, const ChannelOptions& options, const Compute& compute);

  std::string_view name() const override { return "channels"; }
  std::vector<std::string> on_cpu() const override {
    std::vector<std::string> parts = {"searches for subsets"};
    if (plan_.losses.any()) parts.emplace_back("predicted losses");
    return parts;
  }
  Json options() const override;
  std::vector<LeftOut> left_out() const override { return plan_.left_out; }
  std::vector<OptionText> notes() const override { return plan_.notes; }

  std::size_t figures_per_head() const override { return static_cast<std::size_t>(columns_.count()); }
  std::size_t figures_per_layer() const override { return columns_.losses().per_layer(); }
  void begin_layer(Index layer) override;
  void head(const HeadGroup<float>& group, std::span<double> figures) override;
  void head(const HeadGroup<double>& group, std::span<double> figures) override;
  void end_layer(const ResultFolder& folder, Index layer, LayerFigures figures) override;
  Json write_tables(const ResultFolder& folder, const HeadFigures& figures) override;
  std::string report(const HeadFigures& figures) const override;

 private:
  template <class T>
  void compute(const HeadGroup<T>& group, std::span<double> figures);
  /// The part of a layer's files for one KV head, or for one query head if each has its own selection.
  struct Row {
    Matrix<double> interaction, outputs;    // [d, d]
    Vector<double> spectrum;                // [d]
    std::vector<std::vector<Index>> order;  // [rules]
    std::vector<ChannelSet> pruned;         // [cases]
  };
  void write_layer(const ResultFolder& folder, Index layer) const;
  void write_pictures(const ResultFolder& folder, Index layer) const;

  ChannelPlan plan_;
  ChannelColumns columns_;
  std::vector<Row> rows_;                        // of a layer
  std::vector<ChannelMoments> window_, future_;  // [n_q]
  MeasuredLayer measured_;
  OncePerCache<ChannelPart> of_caches_;  // for caches that several layers read
};

}  // namespace kvreplay
