#pragma once

#include "viewer/panels/panel.hpp"
#include "viewer/work/head_figures.hpp"
#include "viewer/work/what_if.hpp"

#include <string>

// What several panels ask of the desk, in the same words, so that it is computed once.

namespace kvreplay::viewer {

/// Heads asked for at a time: enough to keep all threads busy, few enough for a frame.
inline constexpr int kAskedAtOnce = 24;

/// Which figures of a run a summary has: those of its dump, or of its result folder where the dump is gone.
MetricSet available_metrics(const Run& run);

/// Figures and token metrics of one head of the selected run, at the window that is compared with. A run
/// without its dump answers from its results, whose window is their own. Urgency::background asks for figures
/// only, without the metrics of single tokens: those of all heads together would not fit.
Answer<HeadSummary> ask_summary(PanelContext& context, Index layer, Index kv_head, Urgency urgency);

/// What a setting keeps of one head of the selected run and what that costs exactly. A newer setting's answer
/// is preceded by the last one given in `slot` (empty: none). Where the setting cannot be followed, `error`
/// says why.
Answer<WhatIf> ask_what_if(PanelContext& context, const WhatIfSettings& settings, Index layer, Index kv_head,
                           Urgency urgency, const Key& slot);
/// The same for the kept set alone: nothing is computed to make up for what it lacks.
Answer<WhatIf> ask_kept_set(PanelContext& context, const WhatIfSettings& settings, Index layer, Index kv_head,
                            Urgency urgency, const Key& slot);

/// What a setting ranks the tokens of one head by; [l], empty where nothing ranks them.
Answer<WhatIfScores> ask_scores(PanelContext& context, const WhatIfSettings& settings, Index layer,
                                Index kv_head, Urgency urgency);

}  // namespace kvreplay::viewer
