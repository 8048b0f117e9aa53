#pragma once

#include "viewer/panels/panel.hpp"
#include "viewer/work/decode_view.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// What is known of the selected head's decoding in this frame.
struct DecodeAnswers {
  std::shared_ptr<const DecodeView> view;  ///< of these settings, or of older ones (`stale`)
  std::vector<CacheFates> fates;           ///< of view->runs; none where the dump is gone
  std::vector<LeftOut> left_out;
  bool pending = false, stale = false;
  std::string error;
};

/// Why neither the run's dump, which is not at hand, nor its results say how it decodes; nothing where one
/// does.
std::optional<std::string> why_no_decoding(const Run& run, Index layer);

/// Asks the desk for it: from the dump, or from what `kvreplay evict` left where the dump is gone.
class DecodeQuestions {
 public:
  /// Valid until the next call.
  const DecodeAnswers& ask(PanelContext& context, const DecodeSettings& settings);

 private:
  /// Settings made into a plan, or why they cannot be.
  struct Settled {
    Key run;
    DecodeSettings settings;
    std::shared_ptr<const DecodePlan> plan;
    Key key, starts_key;
    std::string error;
  };
  void settle(const Run& run, const DecodeSettings& settings);
  Answer<DecodeView> ask_dump(PanelContext& context) const;
  static Answer<DecodeView> ask_results(PanelContext& context);

  Settled settled_;
  DecodeAnswers answers_;
  Key place_;  // run and head of answers_
};

}  // namespace kvreplay::viewer
