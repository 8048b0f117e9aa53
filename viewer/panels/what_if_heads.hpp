#pragma once

#include "viewer/panels/background_round.hpp"
#include "viewer/work/what_if_figures.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// One setting's figures in all heads, as they come in from the background.

namespace kvreplay::viewer {

/// All heads under one setting. While those of a new setting come in, the old ones' figures stand in.
class WhatIfHeads {
 public:
  /// Begins anew where run or setting are others than before.
  void follow(const Run& run, const WhatIfSettings& settings);
  /// Asks for the next heads that are missing; what has come in is taken.
  void ask(PanelContext& context);

  const WhatIfSettings& settings() const { return settings_; }
  Index heads() const { return std::ssize(heads_); }
  /// Heads answered, those that failed among them.
  Index answered() const { return round_.done(); }
  Index failed() const { return round_.failed(); }
  const std::string& error() const { return round_.error(); }  ///< of the first that failed
  /// Of the setting, or of the one before; null where neither is known.
  const WhatIfFigures* at(Index head) const;
  /// The same of this very setting only.
  const WhatIfFigures* current(Index head) const;
  /// NaN where no head has the figure; over the heads of this very setting.
  double mean(std::size_t figure) const;
  /// The same of the median head, which no few heads rule.
  double median(std::size_t figure) const;
  /// The predicted loss of all heads together, once all of this very setting have answered.
  std::optional<ModelLoss> loss(RowSet rows) const;
  /// Grows whenever a figure changes.
  std::uint64_t version() const { return version_; }

 private:
  Key run_key_;
  WhatIfSettings settings_;
  Index n_kv_ = 0;
  struct Known {
    WhatIfFigures figures;
    PredictedLoss window, future;
  };
  /// Of all heads that have it.
  std::vector<double> values(std::size_t figure) const;

  std::vector<std::optional<Known>> heads_;
  BackgroundRound round_;  // of this setting; until it comes to a head, that has the figures of the last one
  std::uint64_t version_ = 0;
};

}  // namespace kvreplay::viewer
