#pragma once

#include "viewer/panels/background_round.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/work/live_findings.hpp"

#include <memory>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// What is worth knowing of the selected run: of a result folder what it says, of a dump what its heads and
/// some evictions say once all of them are computed. A dump whose findings take long (kFindingWork) waits
/// until they are asked for, and until then says what the Head map has computed anyway. Drawing thread only.
class FindingSource {
 public:
  /// Takes what the desk has by now and asks for what is missing. Once a frame.
  void look(PanelContext& context);
  const std::vector<Finding>& list() const;
  /// Whether there may be more than list() soon; what is computed, in a few words.
  bool pending() const { return pending_; }
  /// How many there may be; of results that are read, how many there are.
  std::size_t most() const { return most_; }
  const std::string& progress() const { return progress_; }
  const std::string& error() const { return error_; }
  /// Whether they take long and have not been asked for.
  bool waits() const { return waits_; }
  void begin() { begun_ = run_key_; }

 private:
  void look_at_results(PanelContext& context);
  void look_at_dump(PanelContext& context);
  /// Whether all are there.
  bool take_heads(PanelContext& context);
  bool take_layers(PanelContext& context);
  /// Says how far it is.
  bool all_taken(const BackgroundRound& round, std::string_view what);
  /// Their findings, without evictions where `layers` are not all there.
  void find(PanelContext& context, bool with_layers);

  Key run_key_, heads_key_, begun_;
  std::vector<std::shared_ptr<const HeadSummary>> heads_;      // [layers * n_kv]
  std::vector<std::shared_ptr<const LayerEvictions>> layers_;  // [layers]
  BackgroundRound head_round_, layer_round_;
  std::shared_ptr<const Findings> found_;
  std::size_t most_ = 0;
  bool pending_ = false, waits_ = false, complete_ = false;
  std::string progress_, error_;
};

}  // namespace kvreplay::viewer
