#pragma once

#include "analysis/findings/computed_tables.hpp"
#include "analysis/findings/findings.hpp"
#include "viewer/model/panel_kind.hpp"
#include "viewer/work/desk.hpp"
#include "viewer/work/head_figures.hpp"
#include "viewer/work/run.hpp"
#include "viewer/work/state.hpp"

#include <memory>
#include <string>
#include <vector>

// What is worth knowing of a dump that has no results yet, and where a finding is to be seen.

namespace kvreplay::viewer {

struct Findings {
  std::vector<Finding> list;
};
std::size_t bytes_of(const Findings& findings);

/// The evictions that findings of a dump compare: some policies that are quick to run and an oracle, with
/// 20 % kept. Those that need all rows of a long prompt are left out.
EvictionOptions finding_evictions();

/// What findings of a dump take, in pairs of a query and a key: token metrics of the window and these
/// evictions, over all query heads.
double finding_work(const DumpShape& shape, Index window);
/// More than this is not begun unasked: about a minute on two cores.
inline constexpr double kFindingWork = 1.5e10;

/// Their kinds: head, future, policy, layer.
inline constexpr std::size_t kLiveFindings = 4;

std::size_t bytes_of(const LayerEvictions& layer);
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

}  // namespace kvreplay::viewer
