#pragma once

#include "data/dtype.hpp"
#include "data/dump.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvreplay {

/// manifest.json as written, its types and values checked as far as that needs no tensor. A key that is
/// absent or null is an empty optional.
struct Manifest {
  struct RopeKeys {
    Rope::Style style = Rope::Style::half;
    std::optional<double> theta;
    std::vector<std::vector<double>> inv_freq;  ///< empty; one list; or one per layer
    bool inv_freq_per_layer = false;
    std::optional<Index> rotary_dim;
    double attention_factor = 1.0;
    bool interleaved_in_ggml = false;
  };

  std::string where;  ///< its path, for messages
  std::optional<std::string> model;
  std::optional<Index> prompt_len;
  std::vector<std::pair<std::string, Index>> prompt_ends;  ///< names of lengths that a prompt may be cut to
  std::optional<double> scale;
  std::optional<bool> causal;
  std::optional<bool> two_sided;  ///< its sliding windows
  std::optional<double> logit_softcap;
  std::optional<Dtype> dtype;
  std::optional<Index> n_layers, n_q_heads, n_kv_heads, head_dim, total_len;
  std::vector<Index> layers;  ///< the model's number of each; empty: 0, 1, ...
  /// Empty; one entry; or one per layer (sliding_window_per_layer).
  std::vector<std::optional<Index>> sliding_window;
  bool sliding_window_per_layer = false;
  std::vector<std::vector<double>> sink_logit;  ///< [layers][n_q]; an empty row: that layer has none
  std::optional<RopeKeys> rope;
  std::string rope_note;  ///< why `rope` is empty
  std::optional<GradientFacts> gradients;
  std::optional<QuestionFacts> question;
  std::string wo_note;                    ///< why the dump has no wo, where the capture says
  std::string residual_note;              ///< why it has no residual_norm
  std::optional<double> output_norm;      ///< eps of the norm before wo; empty: there is no norm
  std::vector<double> output_multiplier;  ///< empty; one; or one per layer
  std::vector<Index> cache_of;            ///< empty, or the layer whose cache each layer reads
  std::vector<std::string> notes;         ///< about keys that say something which nothing here reads
  std::vector<std::string> other_keys;    ///< all that nothing here reads
  bool incomplete = false;                ///< the capture was interrupted: files may hold less than they say
};

/// Throws InputError(where ...) on broken JSON, on a key whose value has the wrong type or is out of range,
/// and on one that is unknown and may be about attention: a misspelt key, a name of Hugging Face's
/// configurations that has another here, or any but a text whose name speaks of masks, windows, heads and the
/// like. Other keys go to `other_keys`, and into a note unless they hold a text that speaks of nothing.
Manifest parse_manifest(std::string_view text, const std::string& where);

/// Checks what the manifest says against the files' shape (all of `shape` but l) and throws InputError where
/// they disagree.
void check_manifest(const Manifest& manifest, const DumpShape& shape);

/// Attention and rotation of a layer (no rotation if the manifest has none). The manifest must have been
/// checked.
AttentionRule attention_rule(const Manifest& manifest, const DumpShape& shape, Index layer);
std::optional<Rope> layer_rope(const Manifest& manifest, const DumpShape& shape, Index layer);

/// tokens.json: {"ids": [...], "text": [...]}, either of which may be missing. Throws InputError on broken
/// JSON and wrong types.
TokenLabels parse_tokens(std::string_view text, const std::string& where);
/// Throws InputError unless every list of labels is empty or has length T.
void check_tokens(const TokenLabels& labels, const std::string& where, Index T);

}  // namespace kvreplay
