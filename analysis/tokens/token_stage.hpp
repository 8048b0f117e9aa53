#pragma once

#include "analysis/given/given_arrays.hpp"
#include "analysis/options/option.hpp"
#include "analysis/results/metric_table.hpp"
#include "analysis/run/stage.hpp"
#include "analysis/tokens/token_agreement.hpp"
#include "data/dump.hpp"
#include "sim/positions.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace kvreplay {

/// A token metric; nothing is "all": every one that the dump can give.
using MetricChoice = std::optional<TokenMetric>;

struct TokenStageOptions {
  std::vector<Positions> window = {{32}};  ///< arrays and sums are those of the first
  std::vector<MetricChoice> metrics = {std::nullopt};
  /// Number of most recent candidates that are always in a score's top-k, whatever their score.
  std::vector<Index> reserve = {0};
  bool per_query_head = false;
  std::vector<NamedFile> scores;
};

/// Binds each option to its field; the options must outlive the result.
BoundOptions bound(TokenStageOptions& options);

namespace token_option {
inline constexpr OptionFacts window{
    "window", "LIST",
    "Rows of scores and errors: the last N prompt queries, 5% of them or all; "
    "of several, arrays and heads.csv are of the first",
    "", 1},
    metrics{"metrics", "LIST", "Token metrics, comma-separated"},
    reserve{"reserve", "LIST",
            "Recall and mass with the last N candidates inside the k that a score finds, whatever it says of "
            "them"},
    per_query_head{"per-query-head", "", "Token arrays for every query head, not summed over its group"},
    score{
        "score", "name=PATH",
        "Your score, .npy [layers, kv_heads, l], compared with every exact error and oracle; {dump} in PATH "
        "is the dump's name, and a folder holds one array a dump, <dump>.npy"};
}  // namespace token_option

template <>
struct OptionValue<TokenMetric> {
  static TokenMetric parse(const OptionFacts& option, const std::string& word);
  static std::string text(TokenMetric metric) { return std::string(name_of(metric)); }
};

template <>
struct OptionValue<MetricChoice> {
  static MetricChoice parse(const OptionFacts& option, const std::string& word);
  static std::string text(const MetricChoice& choice) {
    return choice ? std::string(name_of(*choice)) : "all";
  }
};

/// Resolved request: the parts of the user's options that the dump can serve.
struct TokenPlan {
  TokenOptions options;              ///< with the first window
  std::vector<Index> windows;        ///< rows that score: clipped to those that the dump holds, each once
  std::vector<TokenMetric> metrics;  ///< the metrics of `options`, in the order of export
  std::vector<GivenArray<double>> given;
  std::vector<TokenPair> pairs;  ///< with every window and every reserve
  TokenStageOptions settled;     ///< the resolved options: windows as given, every item once
  std::vector<LeftOut> left_out;
  std::vector<OptionText> notes;
};

/// Throws InputError where a metric is named but unavailable or none is, a reserve leaves no candidate, or a
/// score of the user's cannot be read or has nothing to be compared with.
TokenPlan token_plan(const Dump& dump, const TokenStageOptions& options);

/// Token scores, exact errors, oracles and their agreement:
///   layer_XX/tokens/<metric or score of the user's>.npy, heads.csv, agreement.csv, maps/.
class TokenStage final : public Stage {
 public:
  /// Throws InputError where a metric is named but unavailable, a reserve leaves no candidate, or a score of
  /// the user's cannot be read or has nothing to be compared with.
  TokenStage(const Dump& dump, const TokenStageOptions& options, const Compute& compute)
      : TokenStage(dump, token_plan(dump, options), compute) {}
  TokenStage(const Dump& dump, TokenPlan plan, const Compute& compute);

  std::string_view name() const override { return "tokens"; }
  std::vector<std::string> on_cpu() const override;
  Json options() const override;
  std::vector<LeftOut> left_out() const override { return plan_.left_out; }
  std::vector<OptionText> notes() const override { return plan_.notes; }

  std::size_t figures_per_head() const override;
  HeadParts parts() const override;
  void begin_layer(Index layer) override;
  void head(const HeadGroup<float>& group, std::span<double> figures) override;
  void head(const HeadGroup<double>& group, std::span<double> figures) override;
  void end_layer(const ResultFolder& folder, Index layer, LayerFigures figures) override;
  Json write_tables(const ResultFolder& folder, const HeadFigures& figures) override;
  std::string report(const HeadFigures& figures) const override;

  /// As parts(), but keys that need no copy are checked only where a metric does not detect NaN itself.
  HeadParts parts_read() const;
  /// Computes a head's metrics on the first window and puts them into the layer's arrays, as head() does, but
  /// without figures.
  template <class T>
  void fill_arrays(const HeadGroup<T>& group);
  /// A layer's numbers in the run's precision, [array_rows(), l].
  using Array = std::variant<std::vector<float>, std::vector<double>>;
  /// Arrays of the plan's metrics, then of its given scores, once all heads of the layer are done.
  std::vector<Array> take_arrays() { return std::move(arrays_); }

 private:
  template <class T>
  void measure(const HeadGroup<T>& group, std::span<double> figures);
  /// The head's numbers as the dump stores them, for a backend that reads them so.
  template <class T>
  std::optional<StoredGroup> stored_group(const HeadGroup<T>& group) const;
  template <class T>
  TokenMetrics first_window(const HeadGroup<T>& group, const StoredGroup* stored, const GivenScores& given);
  /// One a KV head, or a query head.
  Index array_rows() const { return plan_.options.per_query_head ? shape_.n_q : shape_.n_kv; }
  /// Stores one head's values in the arrays.
  void keep_arrays(const TokenMetrics& metrics, const GivenScores& given, Index kv_head);
  /// Options of one window: the first computes all metrics, others only metrics that depend on the window.
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
  MetricTable sums(const HeadFigures& figures) const;  ///< heads.csv
  MetricTable agreement(const HeadFigures& figures) const;

  static constexpr std::size_t kTensorFigures = 2;

  TokenPlan plan_;
  DumpShape shape_;
  std::vector<Array> arrays_;  // of the plan's metrics, then of its given scores
};

}  // namespace kvreplay
