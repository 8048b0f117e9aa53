#pragma once

#include "analysis/given/given_arrays.hpp"
#include "analysis/run/stage.hpp"
#include "analysis/tokens/token_agreement.hpp"
#include "analysis/tokens/token_plan.hpp"

#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace kvreplay {

/// Token scores, exact errors, oracles and their agreement:
///   layer_XX/tokens/<metric or score of the user's>.npy, heads.csv, agreement.csv, maps/.
class TokenStage final : public Stage {
 public:
  /// Throws InputError where a metric is named but unavailable, a reserve leaves no candidate, or a score of
  /// the user's cannot be read or has nothing to be compared with.
  TokenStage(const Dump& dump, const TokenStageOptions& options, const Compute& compute);

  std::string_view name() const override { return "tokens"; }
  std::vector<std::string> on_cpu() const override;
  Json options() const override;
  std::vector<LeftOut> left_out() const override { return plan_.left_out; }
  std::vector<OptionText> notes() const override { return plan_.notes; }

  std::size_t figures_per_head() const override;
  void begin_layer(Index layer) override;
  void head(const HeadGroup<float>& group, std::span<double> figures) override;
  void head(const HeadGroup<double>& group, std::span<double> figures) override;
  void end_layer(const ResultFolder& folder, Index layer, LayerFigures figures) override;
  Json write_tables(const ResultFolder& folder, const HeadFigures& figures) override;
  std::string report(const HeadFigures& figures) const override;

 private:
  template <class T>
  void measure(const HeadGroup<T>& group, const StoredGroup* stored, std::span<double> figures);
  /// A layer's numbers in the run's precision, [array_rows(), l].
  using Array = std::variant<std::vector<float>, std::vector<double>>;
  /// One a KV head, or a query head.
  Index array_rows() const { return plan_.options.per_query_head ? shape_.n_q : shape_.n_kv; }
  /// What the arrays have of a head.
  void keep_arrays(const TokenMetrics& metrics, const GivenScores& given, Index kv_head);
  /// Options of one window: the first asks for all metrics, others only for what looks at the window.
  TokenOptions options_of(std::size_t window) const;
  /// Fills in the last figures of a run with --precision tensor: how near KV head 0 comes to float32.
  void compare_with_float32(const HeadGroup<float>& group, std::span<double> figures) const;
  std::optional<TensorAgreement> worst_tensor_agreement(const HeadFigures& figures) const;
  /// One comparison: a pair on a window, with so many reserved.
  struct Case {
    std::size_t window = 0, pair = 0, reserve = 0;  // numbers in the plan
  };
  /// Column of its figure among a head's figures.
  Index column(Case of, AgreementFigure figure) const;
  bool applies(const TokenPair& pair, std::size_t reserve, AgreementFigure figure) const;
  void write_heads(const ResultFolder& folder, const HeadFigures& figures) const;
  /// Returns the number of rows.
  std::size_t write_agreement(const ResultFolder& folder, const HeadFigures& figures) const;
  void write_maps(const ResultFolder& folder, const HeadFigures& figures) const;

  static constexpr std::size_t kTensorFigures = 2;

  TokenPlan plan_;
  DumpShape shape_;
  std::vector<Array> arrays_;  // of the plan's metrics, then of its given scores
};

}  // namespace kvreplay
