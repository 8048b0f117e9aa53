#pragma once

#include "viewer/panels/decode/decode_question.hpp"
#include "viewer/work/decode_divergence.hpp"

#include <functional>
#include <imgui.h>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// What the parts of the panel draw in a frame; there is a view with runs.
struct DecodeShown {
  const DecodeAnswers& now;
  const DecodeAnswers* pinned =
      nullptr;  ///< the pinned run's under the same settings, with a view; null: none
  std::vector<Divergence> divergences = {};
  Index step = 0;
  std::function<ImU32(const DecodeRun&)> color_of = {};

  const std::vector<DecodeRun>& runs() const { return now.view->runs; }
  Index steps() const { return runs().front().steps(); }
  Index first_step() const { return runs().front().first_step; }
  /// The pinned run's, by the number of this run's; none where it has none of that policy and phase.
  std::optional<std::size_t> in_pinned(std::size_t run) const {
    return pinned != nullptr ? same_run(pinned->view->runs, runs()[run]) : std::nullopt;
  }
  const DecodeRun* pinned_run(std::size_t run) const {
    const auto at = in_pinned(run);
    return at ? &pinned->view->runs[*at] : nullptr;
  }
  const CacheFates* pinned_fates(std::size_t run) const {
    const auto at = in_pinned(run);
    return at && *at < pinned->fates.size() ? &pinned->fates[*at] : nullptr;
  }
};

}  // namespace kvreplay::viewer
