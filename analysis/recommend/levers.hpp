#pragma once

#include "analysis/eviction/recipe.hpp"
#include "analysis/results/result_reader.hpp"
#include "analysis/results/schema.hpp"
#include "data/dump.hpp"
#include "sim/cache/quantize.hpp"

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

// Measurements of every way to store a cache, head by head, in the results of several prompts of a model.

namespace kvreplay::recommend {

/// A case of evictions.csv that a recipe can do to a head.
struct Lever {
  std::string policy;  ///< as exported, "snapkv~4+hadamard"
  std::string budget;  ///< the label of `keeps`; empty where the whole prompt stays
  std::optional<Policy> evicts;
  Semantics semantics = Semantics::paper;
  Budget keeps;                      ///< as asked for
  std::string format;                ///< "4+hadamard"; "16" where caches are as they are
  std::vector<Quantization> stored;  ///< [layers]

  bool keeps_all() const { return !evicts; }
  bool is_exact() const;                ///< 16 bits in every layer
  double kept_share(Index held) const;  ///< of `held` tokens; 1 if nothing is evicted
  /// "snapkv, kept 20 % in 4+hadamard"
  std::string text() const;
  std::string text(std::string_view kept) const;  ///< with a given share, as "kept 62.3 %"
};

/// A case's figures of the whole model on one prompt; NaN if unknown.
struct ModelFigures {
  double bytes = kNan;  ///< a share of those of the whole prompt in 16 bits
  double nats = kNan;   ///< loss_step
  double output_error = kNan;
  double kl = kNan, right = kNan;  ///< in the model: its divergence, and whether it still answers rightly
  double same_top1 = kNan;         ///< in the model: share of steps that keep their likeliest token
  double written = kNan, written_same_top1 = kNan;  ///< kl, same_top1 of a cache that the model writes
};

/// Measurements of all levers on one prompt.
struct MeasuredPrompt {
  std::string name;
  std::filesystem::path results;
  std::string dump;  ///< the dump's path, if the results have it; else empty
  Index l = 0;
  /// [levers][layers x n_kv]: shares of the whole prompt's bytes in 16 bits. `asked` is compared with the
  /// budget: a share given as such counts unrounded, though its tokens were rounded up.
  Matrix<double> bytes, asked;
  /// [levers][layers x n_kv]: nats of loss_row, scaled by the ratio of the layer's loss_step to the sum over
  /// its heads and by that of the model's loss_step to the sum over its layers. A lever applied everywhere
  /// thus costs what was measured, and heads that differ share the interaction in proportion to their costs.
  /// Without gradients: the heads' mean output error.
  Matrix<double> nats;
  std::vector<ModelFigures> everywhere;  ///< of each lever
};

/// A case that no head can take by itself: a recipe that was run, or a method that recipes do not have.
struct OtherCase {
  std::string text;
  bool recipe = false;
  std::vector<ModelFigures> of_prompts;
};

struct MeasuredLevers {
  std::string model;
  DumpShape shape;
  bool in_nats = true;   ///< else output errors
  bool written = false;  ///< nats are those of the model that writes into a cache in the format
  std::vector<Lever> levers;
  std::vector<MeasuredPrompt> prompts;
  std::vector<OtherCase> others;
  std::vector<std::string> notes;
  std::vector<std::optional<Index>> windows;  ///< of every layer, as in AttentionRule; empty: none

  /// The number of positions that a layer holds for later rows, of a prompt of `tokens`.
  Index held(Index layer, Index tokens) const;
  /// Bytes of the whole prompt in 16 bits.
  double whole_bytes(Index tokens) const;
};

/// Shares as in MeasuredPrompt, for a prompt of a given length: counted, not measured.
struct CountedBytes {
  double bytes = 0, asked = 0;
};
/// Bytes of a configuration in every head, with a budget that may differ from its own.
CountedBytes counted_bytes(const MeasuredLevers& measured, const Lever& lever, const Budget& keeps,
                           Index tokens);
struct LeverBytes {
  Matrix<double> bytes, asked;
};
LeverBytes bytes_at(const MeasuredLevers& measured, Index tokens);

/// Puts ModelFigures::written in place of predicted losses, heads and layers in proportion to these: a lever
/// everywhere costs what was measured. `is_used` says of which levers. False, and nothing is changed, where
/// one of these that is not exact was not measured so on every prompt.
bool use_written(MeasuredLevers& measured, const std::function<bool(const Lever&)>& is_used);

/// True if recipes can have the evictions in the results of one dump, judging by the recorded options.
bool recommendable(const ResultReader& results);
/// `folders` are results of dumps, or over several; those of one dump are put together. Throws InputError
/// for results without evictions, of different models, and where no lever is in all prompts.
MeasuredLevers read_levers(std::span<const std::filesystem::path> folders);

}  // namespace kvreplay::recommend
