#pragma once

#include "analysis/results/agreement.hpp"
#include "analysis/results/metric_table.hpp"
#include "analysis/results/result_folder.hpp"
#include "data/atomic_file.hpp"
#include "sim/compute.hpp"
#include "sim/eviction/prompt_eviction.hpp"
#include "sim/schedule.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay {

/// Score to compare with an exact error: a token metric, or a score of the user's.
struct TokenScore {
  std::string name;  ///< as exported
  std::optional<TokenMetric> metric;
  std::size_t given = 0;  ///< number of the user's score, where it is no metric

  TokenScore(TokenMetric of) : name(kvreplay::name_of(of)), metric(of) {}  // NOLINT: it is one
  TokenScore(std::string of_user, std::size_t number) : name(std::move(of_user)), given(number) {}
  bool operator==(const TokenScore&) const = default;
};

/// One comparison: how well `score` follows `reference`.
struct TokenPair {
  TokenScore score;
  TokenMetric reference;
  /// True if both have one unit, squared outputs or nats: then their values, not only their ranks, are
  /// comparable.
  bool same_unit() const {
    const MetricUnit unit = kTokenMetrics[reference].unit;
    return score.metric && kTokenMetrics[*score.metric].unit == unit &&
           (unit == MetricUnit::squared_output || unit == MetricUnit::nats);
  }
  /// The row set of the reference: "window" or "future".
  std::string_view rows() const {
    return kTokenMetrics[reference].kind == MetricKind::oracle ? "future" : "window";
  }
};

/// Every score and exact error against every exact error and oracle among `metrics`, none with itself, in
/// canonical order; then every score of the user's, by their names, against the same.
std::vector<TokenPair> token_pairs(const MetricSet& metrics, const std::vector<std::string>& given = {});

/// Combines each metric's query heads (OverHeads): [G, l] becomes [1, l], and [1, l] stays as it is.
TokenMetrics summed_over_group(const TokenMetrics& metrics);

/// One head's metrics and its part of the user's scores, each ranked once for all pairs and reserves. Refers
/// to them.
class TokenRankings {
 public:
  /// Ranks only the candidates from position `first` on.
  TokenRankings(const GivenScores& given, Workers& workers, Index first);
  /// Ranks the metrics that are there, [1, l] each, and replaces earlier rankings of the same metrics: for
  /// another window only the metrics that depend on it are given.
  void rank(const TokenMetrics& metrics);
  /// The agreement of every pair in turn with each of `reserves` (with_reserve()).
  std::vector<Agreement> agreements(const std::vector<TokenPair>& pairs,
                                    const std::vector<Index>& reserves) const;

 private:
  const Ranking& of(const TokenScore& score) const;

  Workers& workers_;
  Index first_;
  std::vector<std::optional<Ranking>> metrics_;
  std::vector<std::optional<Ranking>> given_;
};

/// The agreement of every pair over one head's [1, l] metrics, of the candidates from position `first` on.
std::vector<Agreement> token_agreements(const TokenMetrics& metrics, const std::vector<TokenPair>& pairs,
                                        Workers& workers, const GivenScores& given = {}, Index first = 0);

/// Distance of --precision tensor from float32 over the metrics of one head: the largest ||tensor - f32|| /
/// ||f32||, and the smallest Spearman correlation (1 if a metric is constant over the candidates).
struct TensorAgreement {
  double difference = 0;
  double spearman = 1;
};

/// Compares tensor with float32 on the CPU, on the head's last rows (its window, at most 128) and in its
/// oracles.
TensorAgreement tensor_agreement(const HeadGroup<float>& group, TokenOptions options, const Compute& tensor);

/// The agreement of every pair in every head, to be summed up over heads.
struct AgreementTable {
  struct Head {
    Index layer = 0;
    Index kv_head = 0;
    std::vector<Agreement> agreements;  ///< one a pair
  };
  std::vector<TokenPair> pairs;
  std::vector<Head> heads;
};

/// The median over the heads where the figure is defined; nan where it is in none.
double median_over_heads(const AgreementTable& table, std::size_t pair, AgreementFigure figure);

/// Heads (indices into table.heads) by Spearman's rho of a pair, the lowest first, those without one left
/// out.
std::vector<std::size_t> worst_heads(const AgreementTable& table, std::size_t pair);

/// For the end of a run: a line a score; per reference the median Spearman and recall@10%, and the worst
/// head.
std::string compact_text(const AgreementTable& table);

/// For verify: a line a score, a column a reference, the median over heads of Spearman's rho.
std::string rank_text(const AgreementTable& table);
/// A row a pair: every figure's median over heads, and the head that the score follows least.
void write_medians(AtomicFile file, const AgreementTable& table);
/// The medians as JSON, with the three heads that each score follows least.
Json full_json(const AgreementTable& table);

/// agreement.csv of heads of l candidates, one a layer of `layers` and KV head in this order, on a window of
/// as many rows.
MetricTable agreement_figures(const AgreementTable& table, const std::vector<Index>& layers, Index n_kv,
                              Index l, Index window);

}  // namespace kvreplay
