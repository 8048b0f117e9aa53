#pragma once

#include "analysis/eviction/recipe.hpp"
#include "analysis/results/result_reader.hpp"
#include "analysis/results/schema.hpp"
#include "data/dump.hpp"
#include "sim/cache/quantize.hpp"

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

// What results of several prompts of a model have measured of every way to hold a cache, head by head.

namespace kvreplay::recommend {

/// A case of evictions.csv that a recipe can do to a head.
struct Lever {
  std::string policy;  ///< as exported, "snapkv~4+hadamard"
  std::string budget;  ///< its label; empty where the whole prompt stays
  std::optional<Policy> evicts;
  Semantics semantics = Semantics::paper;
  double sigma = 0;                  ///< as recipes say it; of a budget in tokens, of the first prompt's
  std::string format;                ///< "4+hadamard"; "16" where caches are as they are
  std::vector<Quantization> stored;  ///< [layers]

  bool keeps_all() const { return !evicts; }
  bool is_exact() const;      ///< in 16 bits in every layer
  double kept_share() const;  ///< 1 where it keeps all
  /// "snapkv, kept 20 % in 4+hadamard"
  std::string text() const;
  std::string text(std::string_view kept) const;  ///< with "kept 62.3 %" for its own budget
};

/// What a case comes to of the whole model on one prompt; NaN where that is not known.
struct ModelFigures {
  double bytes = kNan;  ///< a share of those of the whole prompt in 16 bits
  double nats = kNan;   ///< loss_step
  double output_error = kNan;
  double kl = kNan, right = kNan;  ///< in the model: its divergence, and whether it still answers rightly
};

/// What levers come to on one prompt.
struct MeasuredPrompt {
  std::string name;
  std::filesystem::path results;
  std::string dump;  ///< where it may lie; empty where results do not say
  Index l = 0;
  /// [levers][layers x n_kv]: shares of what the whole prompt takes in 16 bits. A budget is compared with
  /// `asked`: a share that was asked for counts as that share, though its tokens were rounded up.
  Matrix<double> bytes, asked;
  /// [levers][layers x n_kv]: nats are those of loss_row, times what the layer's loss_step is of its heads'
  /// sum, times what the model's is of its layers'. So a lever everywhere costs what was measured, and heads
  /// that differ share what is between them by what they cost. Without gradients the heads' mean output
  /// error.
  Matrix<double> nats;
  std::vector<ModelFigures> everywhere;  ///< of each lever
};

/// What no head can take by itself: a recipe that was run, or what recipes do not have.
struct OtherCase {
  std::string text;
  bool recipe = false;
  std::vector<ModelFigures> of_prompts;
};

struct MeasuredLevers {
  std::string model;
  DumpShape shape;
  bool in_nats = true;  ///< else output errors
  std::vector<Lever> levers;
  std::vector<MeasuredPrompt> prompts;
  std::vector<OtherCase> others;
  std::vector<std::string> notes;
  std::vector<std::optional<Index>> windows;  ///< of every layer, as AttentionRule has it; empty: none

  /// Of a prompt of `tokens`, those that a layer holds for later rows.
  Index held(Index layer, Index tokens) const;
  /// Bytes of the whole prompt in 16 bits.
  double whole_bytes(Index tokens) const;
};

/// Shares as MeasuredPrompt has them, of a prompt of so many tokens: counted, not measured. Budgets in tokens
/// count as the shares that recipes make of them.
struct CountedBytes {
  double bytes = 0, asked = 0;
};
/// Of a lever in every head, at a compression ratio that may be another than its own.
CountedBytes counted_bytes(const MeasuredLevers& measured, const Lever& lever, double sigma, Index tokens);
struct LeverBytes {
  Matrix<double> bytes, asked;
};
LeverBytes bytes_at(const MeasuredLevers& measured, Index tokens);

/// Whether results of one dump are of evictions that recipes can have, as far as their options tell.
bool recommendable(const ResultReader& results);
/// `folders` are results of dumps, or over several; those of one dump are put together. Throws InputError
/// for results without evictions, of different models, and where no lever is in all prompts.
MeasuredLevers read_levers(std::span<const std::filesystem::path> folders);

}  // namespace kvreplay::recommend
