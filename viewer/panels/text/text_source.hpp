#pragma once

#include "viewer/model/text_layout.hpp"
#include "viewer/panels/background_round.hpp"
#include "viewer/work/token_tint.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// Over which heads a text's figures go.
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
  void ask(PanelContext& context, std::optional<TokenMetric> metric, TextScope scope);

  /// Null until it is known; while more heads come in, of those that are there.
  const TokenTint* tint() const { return tint_.value.get(); }
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
  void ask_values(PanelContext& context, TokenMetric metric, TextScope scope);
  void ask_all_values(PanelContext& context, TokenMetric metric);
  void ask_kept(PanelContext& context, TextScope scope);
  void ask_tint(PanelContext& context, const Key& key, std::function<std::vector<double>()> values);

  Answer<TokenTint> tint_;
  std::shared_ptr<const WhatIf> one_;  // of the selected head; null where the scope is wider, or not known
  // Over all layers: what has come in of them, and of which state of it the tint is asked.
  Key sums_key_;
  std::vector<double> sums_;
  BackgroundRound layers_;
  std::shared_ptr<const std::vector<double>> asked_;
  Index asked_layers_ = 0;
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
