#pragma once

#include "viewer/panels/background_round.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/work/find.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// Looks for the heads or tokens that meet a condition, over frames, and selects them. Drawing thread only.
class HeadSearch {
 public:
  /// Begins anew; what was looked for before is forgotten.
  void begin(const FindEntry& entry, const PanelContext& context);
  /// Takes what the desk has by now; once a frame.
  void look(PanelContext& context);
  bool searching() const { return heads_where_ || tokens_where_; }

 private:
  void look_at_heads(PanelContext& context);
  void look_at_tokens(PanelContext& context);
  void stop();

  Key run_, asked_;  ///< that is selected; run and window that were asked about
  std::optional<HeadCondition> heads_where_;
  std::optional<TokenCondition> tokens_where_;
  std::vector<std::shared_ptr<const HeadSummary>> heads_;
  BackgroundRound round_;
};

}  // namespace kvreplay::viewer
