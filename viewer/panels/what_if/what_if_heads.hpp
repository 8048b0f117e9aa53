#pragma once

#include "viewer/panels/questions.hpp"
#include "viewer/panels/what_if/what_if_figures.hpp"

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
  Index answered() const { return answered_; }
  Index failed() const { return failed_; }
  const std::string& error() const { return error_; }  ///< of the first that failed
  /// Of the setting, or of the one before; null where neither is known.
  const WhatIfFigures* at(Index head) const;
  /// The same of this very setting only.
  const WhatIfFigures* current(Index head) const;
  /// NaN where no head has the figure; over the heads of this very setting.
  double mean(std::size_t figure) const;
  /// Grows whenever a figure changes.
  std::uint64_t version() const { return version_; }

 private:
  struct Head {
    std::optional<WhatIfFigures> figures;
    bool answered = false;  ///< `figures` are of this setting
    bool failed = false;
  };
  Key run_key_;
  WhatIfSettings settings_;
  Index n_kv_ = 0;
  std::vector<Head> heads_;
  Index answered_ = 0, failed_ = 0;
  std::string error_;
  std::uint64_t version_ = 0;
};

}  // namespace kvreplay::viewer
