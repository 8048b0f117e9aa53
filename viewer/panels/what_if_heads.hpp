#pragma once

#include "viewer/panels/questions.hpp"
#include "viewer/widgets/heatmap_view.hpp"

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

// One setting's figures in all heads, as they come in from the background.

namespace kvreplay::viewer {

/// A figure of a WhatIf.
struct WhatIfFigure {
  const char* name;   ///< the field's word, as in evictions.csv
  const char* title;  ///< one line for a table
  const char* unit;
  const char* about;
  std::optional<bool> larger_is_worse;
  double (*of)(const WhatIf&);
  std::string (*text)(double);
};
inline constexpr std::size_t kWhatIfFigures = 8;
const std::array<WhatIfFigure, kWhatIfFigures>& what_if_figures();
using WhatIfFigures = std::array<double, kWhatIfFigures>;
WhatIfFigures figures_of(const WhatIf& answer);

/// All heads under one setting. While those of a new setting come in, the old ones' figures stand in.
class WhatIfHeads {
 public:
  /// Begins anew where run or setting are others than before.
  void follow(const Run& run, const WhatIfSettings& settings);
  /// Asks for the next heads that are missing; what has come in is taken.
  void ask(PanelContext& context);

  const WhatIfSettings& settings() const { return settings_; }
  Index heads() const { return static_cast<Index>(heads_.size()); }
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
  std::string run_key_;
  WhatIfSettings settings_;
  Index n_kv_ = 0;
  std::vector<Head> heads_;
  Index answered_ = 0, failed_ = 0;
  std::string error_;
  std::uint64_t version_ = 0;
};

/// A figure of one setting, or the difference of two, as a map layers x KV heads.
class WhatIfMap {
 public:
  enum class Show { a, b, difference };

  HeatmapHit draw(ImVec2 size, const Run& run, const WhatIfHeads& a, const WhatIfHeads& b, std::size_t figure,
                  Show show, AppState& state);
  HeatmapView& heatmap() { return heatmap_; }
  const HeatmapView& heatmap() const { return heatmap_; }

 private:
  HeatmapView heatmap_;
  std::string key_;
  std::map<TileKey, std::shared_ptr<const Tile>> tiles_;
};

}  // namespace kvreplay::viewer
