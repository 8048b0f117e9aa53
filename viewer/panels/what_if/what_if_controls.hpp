#pragma once

#include "analysis/results/figure_facts.hpp"
#include "viewer/model/heatmap_image.hpp"
#include "viewer/questions/state.hpp"
#include "viewer/questions/what_if_figures.hpp"
#include "viewer/widgets/position_axis.hpp"

#include <array>
#include <imgui.h>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// The colours of the settings A and B, wherever they are told apart.
std::array<ImU32, 2> setting_colors();
/// "snapkv+joint, kept 179 tokens" or "snapkv+joint, kept 20 %", with what is not the policy's own behind it.
std::string summary_of(const WhatIfSettings& settings);

/// Controls of two settings side by side, a row a choice; an unset choice shows the policy's own. `more`:
/// those that most policies have an own value for, too. A run with a dump must be open.
void edit_settings(AppState& state, bool more);
/// Buttons that keep or evict the chosen tokens in the setting in view, overriding its policy. Drawn if
/// tokens are chosen.
void draw_kept_brush(AppState& state);

/// Two kept sets over the positions of a prompt, one above the other. Either may be null: not known yet.
struct KeptStripContent {
  const KeptSet *a = nullptr, *b = nullptr;  ///< [l]
  Index l = 0;
  std::optional<Index> selected, hovered;
  std::span<const Index> chosen;  ///< together, ascending
  Key link;                       ///< HeatmapContent::link of the tokens' axis
};

/// Draws them: what both keep is grey, what one keeps alone has its setting's colour.
class KeptStrip {
 public:
  void draw(const char* id, float width, const KeptStripContent& content, HeatmapLinks& links);
  const PositionAxis& axis() const { return axis_; }

 private:
  PositionAxis axis_;
};

/// Legend of the colours with the number of tokens of each, on the current line; shorter if `width` pixels do
/// not suffice.
void kept_legend(const KeptDifference& difference, float width);

/// True if either answer (may be null) is from a cache that compensates for evicted tokens.
bool any_compensated(const std::array<const WhatIf*, 2>& answers);

/// Causes of the errors of settings A and B, as waterfalls on one scale: the cost of the choice of tokens,
/// then with their weights, then with their values. The waterfalls are side by side if `width` pixels allow
/// it. `rows`: the set that the user picked. If it is empty, or nothing is known on it: the decoding steps,
/// else the window.
void error_waterfalls(const std::array<const WhatIf*, 2>& answers, std::optional<RowSet>& rows, float width);

/// A figure under A and B; nan where it is not known.
struct FigureLine {
  const WhatIfFigure* figure = nullptr;  ///< format of the metric, and its better end
  std::string title, about;
  std::array<double, 2> values{};
};

/// Figures of one head that its dump can have; either answer may be null. With `heads`, the losses of all
/// heads together behind its own.
std::vector<FigureLine> figure_lines(const Dump& dump, const std::array<const WhatIf*, 2>& answers,
                                     const std::array<WhatIfHeads, 2>* heads);
/// A table of the lines under A and B. Where both are of one budget, as the caller says, the better of two is
/// in a stronger colour and with room for it a column says how B differs from A. `with_names`: A and B stand
/// above theirs.
void figure_table(std::span<const FigureLine> lines, bool comparable, bool with_names);

}  // namespace kvreplay::viewer
