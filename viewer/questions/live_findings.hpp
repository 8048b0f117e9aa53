#pragma once

#include "analysis/eviction/evict_stage.hpp"
#include "analysis/findings/findings.hpp"
#include "viewer/model/panel_kind.hpp"
#include "viewer/questions/ask.hpp"
#include "viewer/questions/head_figures.hpp"
#include "viewer/questions/job_queue.hpp"
#include "viewer/questions/run.hpp"
#include "viewer/questions/state.hpp"

#include <memory>
#include <string>
#include <vector>

namespace kvreplay::viewer {

// Findings on a dump that has no results yet, and the place where each can be seen.

struct Findings {
  std::vector<Finding> list;
};
inline std::size_t bytes_of(const Findings& findings) { return bytes_with(findings, findings.list); }

/// The evictions that findings of a dump compare: some policies that are quick to run and an oracle, with
/// 20 % kept. Those that need all rows of a long prompt are left out.
EvictionOptions finding_evictions();

/// Work for the findings of a dump, in pairs of a query and a key: token metrics of the window and these
/// evictions, over all query heads.
double finding_work(const DumpShape& shape, Index window);

/// Their kinds: head, future, policy, layer.
inline constexpr std::size_t kLiveFindings = 4;

/// finding_evictions() in one layer of the dump.
LayerEvictions live_evictions(const Run& run, Index layer, JobControl& job);

/// findings_of() of the tables that `kvreplay tokens` with this window and `evict` with finding_evictions()
/// write. `heads` are those of all layers in turn; `layers` one each, or none: then without what evictions
/// cost. `job` ranks the tokens of the head that a score misranks most.
Findings live_findings(const std::shared_ptr<const Run>& run,
                       const std::vector<std::shared_ptr<const HeadSummary>>& heads,
                       const std::vector<std::shared_ptr<const LayerEvictions>>& layers, Index window,
                       JobControl& job);

/// Selects the head and the token that the finding is of and sets what is compared, or setting A, to what it
/// speaks of. The panel in which it is seen then.
PanelKind follow(const Finding& finding, AppState& state);

/// Findings on the selected run. Those of a result folder are read; those of a dump follow from its heads and
/// some evictions, once all of them are computed. If that takes long (more than kUnaskedWork), the
/// computation waits until the user requests it. Until then, findings use only the data that the Head map has
/// computed. Drawing thread only.
class FindingSource {
 public:
  /// Takes what the queue has by now and asks for what is missing. Once a frame.
  void look(PanelContext& context);
  const std::vector<Finding>& list() const;
  /// True if list() may soon grow; progress() then names the current computation in a few words.
  bool pending() const { return pending_; }
  /// Largest possible number of findings; the actual number if results are read.
  std::size_t most() const { return most_; }
  const std::string& progress() const { return progress_; }
  const std::string& error() const { return error_; }
  /// True if the findings take long and the user has not requested them.
  bool waits() const { return waits_; }
  void begin() { begun_ = run_key_; }

 private:
  void look_at_results(PanelContext& context);
  void look_at_dump(PanelContext& context);
  /// Takes the heads that are ready. Returns true if all are there and none failed.
  bool take_heads(PanelContext& context);
  bool take_layers(PanelContext& context);
  /// Updates progress and error. Returns true if the round is complete and nothing failed.
  bool all_taken(const BackgroundRound& round, std::string_view what);
  /// Computes the findings of the heads; without those on evictions if `layers` are incomplete.
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
