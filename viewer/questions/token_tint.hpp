#pragma once

#include "data/facts_table.hpp"
#include "sim/kept_set.hpp"
#include "sim/tokens/token_metrics.hpp"
#include "viewer/model/value_scale.hpp"
#include "viewer/questions/ask.hpp"
#include "viewer/questions/job_queue.hpp"
#include "viewer/questions/run.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay::viewer {

// Costs of a prompt's tokens for the tint of the text: of one head, or summed over many.

/// One metric of every token, summed over heads; [l].
struct TokenSums {
  std::vector<double> values;
};
/// Sums over the KV heads of a layer, at a window of w rows; for a run without its dump, at its results'
/// window. Throws InputError if the run has no such metric.
TokenSums layer_token_sums(const Run& run, Index layer, TokenMetric metric, Index window, JobControl& job);
inline std::size_t bytes_of(const TokenSums& answer) { return bytes_with(answer, answer.values); }
/// As above, as a job of the queue, for the context's run and the window of the comparison.
Answer<TokenSums> ask_layer_sums(PanelContext& context, Index layer, TokenMetric metric, Urgency urgency);

/// Values of the l tokens with their places on a scale of colours, and among each other.
struct TokenTint {
  std::vector<double> values;
  std::vector<std::int32_t> place;  ///< number of tokens that rank before, the largest value first; ties by
                                    ///< position
  std::vector<std::int16_t> level;  ///< 0 .. 255 on `scale`; 0 also for NaN; with the sign of a difference
  ValueScale scale;                 ///< from the low end to the largest value, or magnitude of a difference
  bool is_difference = false;
  /// The level by rank: 255 the largest value, 0 the smallest.
  std::uint8_t rank_level(Index token) const;
  /// Displayed level: -255 .. 255.
  int shown_level(Index token, bool by_rank) const {
    return by_rank && !is_difference ? rank_level(token) : level[token];
  }
};
/// Logarithmic from the median of what is positive, where no value is negative and some are
/// positive (a decade where that is one value); else linear over all values. O(l log l).
TokenTint token_tint(std::vector<double> values);
/// The tint of values less another run's, or of how many places each token is further up than there:
/// magnitudes on such a scale, places by magnitude. NaN where either is, or one run has fewer tokens.
TokenTint difference_tint(const std::vector<double>& own, const std::vector<double>& pinned, bool by_rank);
inline std::size_t bytes_of(const TokenTint& answer) {
  return bytes_with(answer, answer.values, answer.place, answer.level);
}

/// In how many heads every token is kept, as the heads come in and change one by one.
class KeptCounts {
 public:
  void reset(Index heads, Index l);
  /// A head's kept set, [l], in place of the last one. O(l).
  void take(Index head, const KeptSet& kept);

  Index heads() const { return known_; }  ///< of which something is known
  Index count(Index token) const { return counts_[token]; }
  Index tokens() const { return std::ssize(counts_); }

 private:
  std::vector<std::int32_t> counts_;     // [l]
  std::vector<std::vector<bool>> kept_;  // by head: its last set; empty: not known
  Index known_ = 0;
};

/// Heads over which a text's metrics are summed.
enum class TextScope { head, layer, all };
struct TextScopeFacts {
  TextScope id;
  std::string_view name, meaning;
};
inline constexpr auto kTextScopes = facts_table<TextScopeFacts>({
    {TextScope::head, "head", "The selected head, or the query head where one is selected"},
    {TextScope::layer, "layer", "Summed over the KV heads of the selected layer"},
    {TextScope::all, "all", "Summed over all heads; they come in one by one"},
});
constexpr std::string_view name_of(TextScope scope) { return kTextScopes[scope].name; }

/// One metric of every token of a run's prompt.
class TextValues {
 public:
  /// Asks for what is missing, and takes what has come in. Over all heads what is given stays the same while
  /// it is `in_use`.
  void ask(PanelContext& context, TokenMetric metric, TextScope scope, bool in_use);

  /// Function that makes the values, [l]; empty until something is known. While more heads arrive, the values
  /// cover those that have.
  const std::function<std::vector<double>()>& make() const { return make_; }
  const Key& key() const { return key_; }  ///< everything that the values depend on
  /// True if no more heads will arrive.
  bool whole() const { return progress_ >= 1; }
  double progress() const { return progress_; }  ///< progress over the heads, 0..1
  bool pending() const { return pending_; }
  bool unfinished() const { return unfinished_; }  ///< true if another frame could take more answers
  const std::string& error() const { return error_; }

 private:
  void ask_all(PanelContext& context, TokenMetric metric, bool in_use);

  std::function<std::vector<double>()> make_;
  Key key_;
  // Over all layers: what has come in of them, and which state of it is given.
  Key sums_key_;
  std::vector<double> sums_;
  BackgroundRound layers_;
  std::shared_ptr<const std::vector<double>> given_;
  Index given_layers_ = 0;

  double progress_ = 1;
  bool pending_ = false, unfinished_ = false;
  std::string error_;
};

/// Numbers that a frame may add up.
inline constexpr Index kAddedAFrame = 2'000'000;

/// Costs of the selected run's tokens, and the number of heads that keep each.
class TextSource {
 public:
  /// Asks for what is missing, of no tokens' values where there is no metric; what has come in is taken.
  /// Where a run is pinned, the tint is of what is other there, in places where it is `by_rank`.
  void ask(PanelContext& context, std::optional<TokenMetric> metric, TextScope scope, bool by_rank);

  /// Null until it is known; while more heads come in, of those that are there.
  const TokenTint* tint() const { return tint_.value.get(); }
  /// Name of the run that the tint has subtracted; empty: none.
  const std::string& less() const { return less_; }
  /// Number of heads whose kept sets are known (0: none), and number of these heads that keep a token.
  Index heads() const;
  Index kept(Index token) const;
  /// Tokens of the prompt that are kept, where one head's set is shown.
  std::optional<Index> kept_tokens() const {
    return one_ != nullptr ? std::optional(one_->tokens) : std::nullopt;
  }
  /// The share of the heads that evict it, 0..1; 0 where it is not known.
  float evicted(Index token) const;
  /// Progress over the heads, 0..1.
  double progress() const { return progress_; }
  bool pending() const { return pending_; }
  const std::string& error() const { return error_; }
  /// True if another frame could take more answers.
  bool unfinished() const { return unfinished_; }

 private:
  void ask_tint(PanelContext& context, TokenMetric metric, TextScope scope, bool by_rank);
  void take(const TextValues& values);
  void ask_kept(PanelContext& context, TextScope scope);

  TextValues own_, pinned_;
  std::string less_;
  Answer<TokenTint> tint_;
  std::shared_ptr<const WhatIf> one_;  // of the selected head; null where the scope is wider, or not known
  // Over the heads of a layer, or of all.
  Key kept_key_;
  WhatIfSettings kept_settings_;
  KeptCounts counts_;
  BackgroundRound kept_heads_;

  double progress_ = 1;
  bool pending_ = false, unfinished_ = false;
  std::string error_;
};

}  // namespace kvreplay::viewer
