#pragma once

#include "viewer/model/token_text.hpp"
#include "viewer/panels/background_round.hpp"
#include "viewer/panels/text/text_values.hpp"
#include "viewer/work/token_tint.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// The lines of the selected run's tokens, broken in the background.
class TextLines {
 public:
  /// In the present font, `width` pixels wide. Where a newer one is not there yet, the last one.
  Answer<TextLayout> ask(PanelContext& context, float width);

 private:
  struct Advances {
    float em = 0;
    std::vector<float> of;  // by code point
    float others = 0;
  };
  std::shared_ptr<const Advances> advances_;  // of the present font
};

/// What the tokens of the selected run cost, and who keeps them.
class TextSource {
 public:
  /// Asks for what is missing, of no tokens' values where there is no metric; what has come in is taken.
  /// Where a run is pinned, the tint is of what is other there, in places where it is `by_rank`.
  void ask(PanelContext& context, std::optional<TokenMetric> metric, TextScope scope, bool by_rank);

  /// Null until it is known; while more heads come in, of those that are there.
  const TokenTint* tint() const { return tint_.value.get(); }
  /// Name of the run that the tint has subtracted; empty: none.
  const std::string& less() const { return less_; }
  /// Over how many heads the kept sets go, and by how many of them a token is kept; 0: not known.
  Index heads() const;
  Index kept(Index token) const;
  /// Of the prompt, where one head's set is shown.
  std::optional<Index> kept_tokens() const {
    return one_ != nullptr ? std::optional(one_->tokens) : std::nullopt;
  }
  /// The share of the heads that evict it, 0..1; 0 where it is not known.
  float evicted(Index token) const;
  /// How far the heads are, 0..1.
  double progress() const { return progress_; }
  bool pending() const { return pending_; }
  const std::string& error() const { return error_; }
  /// Whether more could be taken in another frame.
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
