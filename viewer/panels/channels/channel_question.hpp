#pragma once

#include "viewer/panels/panel.hpp"
#include "viewer/work/channel_view.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// What is known of the selected head's channels in this frame.
struct ChannelAnswers {
  Key key;  ///< what `head` and `outputs` depend on
  Index layer = 0;
  std::shared_ptr<const ChannelHead> head;
  std::shared_ptr<const ChannelOutputs> outputs;    ///< null too where a run's results have none
  std::shared_ptr<const ChannelPrunings> prunings;  ///< of the ratio asked for, or of an older one (`stale`)
  std::vector<double> ratios;                       ///< those that there are; empty: any
  bool pending = false, stale = false;
  std::string error;
};

/// Why neither the run's dump, which is not at hand, nor its results say how channels interact; nothing where
/// one does.
std::optional<std::string> why_no_channels(const Run& run, Index layer);

/// Asks the desk for them: from the dump, or from what `kvreplay channels` left where the dump is gone.
class ChannelQuestions {
 public:
  /// `settings.methods` are all that the dump can give.
  ChannelAnswers ask(PanelContext& context, const ChannelSettings& settings, double ratio);

 private:
  /// Settings made into a plan, or why they cannot be.
  struct Settled {
    Key run;
    ChannelSettings settings;
    std::shared_ptr<const ChannelPlan> plan;
    Key basis;
    std::string error;
  };
  void settle(const Run& run, const ChannelSettings& settings);
  ChannelAnswers ask_dump(PanelContext& context, double ratio) const;

  Settled settled_;
};

}  // namespace kvreplay::viewer
