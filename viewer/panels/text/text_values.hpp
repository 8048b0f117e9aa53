#pragma once

#include "data/facts_table.hpp"
#include "viewer/panels/background_round.hpp"
#include "viewer/panels/panel.hpp"

#include <functional>
#include <memory>
#include <string>
#include <string_view>
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

/// One metric of every token of a run's prompt.
class TextValues {
 public:
  /// Asks for what is missing, and takes what has come in. Over all heads what is given stays the same while
  /// it is `in_use`.
  void ask(PanelContext& context, TokenMetric metric, TextScope scope, bool in_use);

  /// What makes them, [l]; empty until something is known. While more heads come in, of those that are there.
  const std::function<std::vector<double>()>& make() const { return make_; }
  const Key& key() const { return key_; }  ///< what they depend on
  /// Whether no more heads will come in.
  bool whole() const { return progress_ >= 1; }
  double progress() const { return progress_; }  ///< how far the heads are, 0..1
  bool pending() const { return pending_; }
  bool unfinished() const { return unfinished_; }  ///< whether more could be taken in another frame
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

}  // namespace kvreplay::viewer
