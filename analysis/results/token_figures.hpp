#pragma once

#include "analysis/results/result_reader.hpp"
#include "sim/tokens/token_facts.hpp"

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace kvreplay {

/// For every head with token arrays: the share of each reference's k costliest tokens that are among a
/// score's k largest, at every k of a grid, and the values of some tokens.
struct TokenFigures {
  std::vector<std::string> heads;       ///< "layer 3, head 1", or "..., query head 5" of arrays by query head
  std::vector<std::string> metrics;     ///< the arrays that there are, in the run's order
  std::vector<std::string> scores;      ///< metrics that a method could rank by, including exact errors
  std::vector<std::string> references;  ///< exact errors and oracles
  std::vector<double> k;                ///< ascending; token counts
  /// [reference][head][score][k]; a reference against itself is NaN throughout.
  std::vector<std::vector<std::vector<std::vector<double>>>> recall;

  Index tokens = 0;                            ///< candidates a head
  std::vector<std::vector<double>> positions;  ///< [head][point]: the tokens that were sampled
  std::vector<std::map<std::string, std::vector<double>>> values;  ///< [head], by metric: of these
};

/// Reads the arrays layer by layer. Without references or heads where the folder has none.
TokenFigures token_figures(const ResultReader& results);

/// Where an array of tokens lies below a result folder.
std::filesystem::path token_file(Index layer, const std::string& metric);
/// A score of the user's is a score.
MetricKind kind_of_metric(std::string_view name);
/// The token arrays that there are, in the run's order; scores of the user's last.
std::vector<std::string> metrics_in(const ResultReader& results);
/// An array [n_kv or n_q, l] of a layer's heads. Throws InputError where it has another shape.
ResultReader::Array by_head(const ResultReader& results, const std::filesystem::path& name);
ResultReader::Array token_array(const ResultReader& results, Index layer, const std::string& metric);
/// "layer 3, head 1", or "layer 3, query head 5" where an array has a row for each of more heads.
std::string head_name(const ResultReader& results, Index layer, Index heads, Index head);

/// recall[i] of the k[i] largest of `score` among the k[i] largest of `reference`; among equal values the
/// lower position is the larger, NaN is the smallest.
std::vector<double> recall_curve(const std::vector<Index>& score_rank,
                                 const std::vector<Index>& reference_rank, const std::vector<double>& k);
/// The rank of every token, 0 for the largest value.
std::vector<Index> ranks_of(const double* values, Index count);

/// At most `most` tokens: a quarter of them those of the largest values, the rest evenly spaced. Ascending.
std::vector<Index> sampled_tokens(const std::vector<Index>& rank, Index most);

}  // namespace kvreplay
