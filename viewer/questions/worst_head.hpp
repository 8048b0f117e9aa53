#pragma once

#include "viewer/questions/figure_map.hpp"

#include <optional>
#include <utility>

namespace kvreplay::viewer {

/// Looks for the head of the selected run at which most is at stake: where setting A of What if costs most
/// beyond what the exact order would cost at the same budget (SettingView::beyond_exact of main_cost()).
/// Drawing thread only.
class WorstHead {
 public:
  /// Takes what the queue has by now and asks for what is missing: (layer, KV head) once all heads are known;
  /// nothing before, and where it cannot be said.
  std::optional<std::pair<Index, Index>> look(PanelContext& context);
  /// True if look() must be called again; else its last result is final.
  bool pending() const { return pending_; }

 private:
  HeadMapSource source_;
  bool pending_ = false;
};

}  // namespace kvreplay::viewer
