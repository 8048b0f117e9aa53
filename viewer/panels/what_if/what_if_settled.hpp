#pragma once

#include "viewer/panels/questions.hpp"
#include "viewer/work/what_if_compensation.hpp"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// What all questions about one setting of What if share, whatever head they are about.

namespace kvreplay::viewer {

/// Settings made into a plan, or why they cannot be.
struct SettledWhatIf {
  WhatIfSettings settings;
  Key key, plain_key, ranking_key;           ///< of all, of what is kept, of what ranks it
  std::shared_ptr<const EvictionPlan> plan;  ///< null where `error` says why
  std::shared_ptr<const CompensationPlan> compensation;
  KeptPaint paint;
  std::optional<UserScore> score;  ///< that the settings name
  std::string error;
};

/// What one run's questions leave for the next frame; the drawing thread's alone.
class WhatIfMemo {
 public:
  /// Settings without a score of the user's.
  std::shared_ptr<const SettledWhatIf> settle(const WhatIfSettings& settings, const Dump& dump);
  /// The last answer given in a slot; null where none was.
  void remember(const Key& slot, const std::shared_ptr<const WhatIf>& answer);
  std::shared_ptr<const WhatIf> last_of(const Key& slot) const;

 private:
  static constexpr std::size_t kSettled = 8, kLast = 16;
  std::vector<std::shared_ptr<const SettledWhatIf>> settled_;        // newest first
  std::vector<std::pair<Key, std::shared_ptr<const WhatIf>>> last_;  // of each slot, newest first
};

/// The desk keeps it, so that it goes with the run: the desk's own slots know nothing of a question that
/// cannot be put yet, because another must be answered first. Null for the moment that it takes to make it.
std::shared_ptr<WhatIfMemo> what_if_memo(PanelContext& context, const Run& run);

/// With a score of the user's: its file is read, which is a job.
Answer<SettledWhatIf> ask_settled(PanelContext& context, const std::shared_ptr<const Run>& run,
                                  const WhatIfSettings& settings, const UserScore& score, Urgency urgency);

}  // namespace kvreplay::viewer
