#pragma once

#include "data/dump.hpp"
#include "viewer/questions/head_figures.hpp"
#include "viewer/questions/state.hpp"
#include "viewer/questions/what_if.hpp"

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

// Common questions of several panels, with one key each, so that each is computed once.

namespace kvreplay::viewer {

/// Smallest budget down to which a token is kept.
struct LeastBudget {
  std::optional<Index> tokens;  ///< the last budget that keeps it, 1..l; empty where not even l does
};
/// Searches down from l; `kept(k)` returns true if a budget of k tokens keeps the token. Tries about `looks`
/// budgets, evenly in log k, then bisects the gap before the first budget that evicts it.
LeastBudget least_budget(Index l, std::size_t looks, const std::function<bool(Index)>& kept);

/// Pairs of a query and a key: more than these are not computed unasked. About a minute on two cores.
inline constexpr double kUnaskedWork = 1.5e10;

/// Heads asked for at a time: enough to keep all threads busy, few enough for a frame.
inline constexpr int kAskedAtOnce = 24;

/// A question that is put to each of many heads (or layers) in the background, a few at a time, until all
/// have answered.
class BackgroundRound {
 public:
  void restart(Index count) {
    answered_.assign(count, 0);
    done_ = failed_ = 0;
    error_.clear();
  }
  /// `ask(i)` puts the question and gives the queue's Answer; `take(i, answer)` takes it once it is there,
  /// at most `most` of them a call, with `answer` false where it failed. At most `at_once` are left open.
  /// Whether some were left for another frame though they may be there.
  template <class Ask, class Take>
  bool go_on(const Ask& ask, const Take& take, Index most = kAll, int at_once = kAskedAtOnce) {
    int waiting = 0;
    for (Index i = 0; i < count() && waiting < at_once; ++i) {
      if (answered(i)) continue;
      if (most == 0) return true;
      const auto answer = ask(i);
      if (answer.pending) {
        ++waiting;
        continue;
      }
      answered_[i] = 1;
      ++done_;
      --most;
      if (!answer && failed_++ == 0) error_ = answer.error;
      take(i, answer);
    }
    return false;
  }

  Index count() const { return std::ssize(answered_); }
  bool answered(Index i) const { return answered_[i] != 0; }
  Index done() const { return done_; }  ///< those that failed among them
  Index failed() const { return failed_; }
  const std::string& error() const { return error_; }  ///< of the first that failed

 private:
  static constexpr Index kAll = -1;
  std::vector<std::uint8_t> answered_;
  Index done_ = 0, failed_ = 0;
  std::string error_;
};

/// Metrics that a head's summary contains: those of the run's dump, or of its result folder if the dump is
/// gone.
MetricSet available_metrics(const Run& run);

/// Figures and token metrics of one head of the selected run, at the window that is compared with. A run
/// without its dump answers from its results, whose window is their own. From Urgency::background on it asks
/// for figures only, without the metrics of single tokens: those of all heads together would not fit.
Answer<HeadSummary> ask_summary(PanelContext& context, Index layer, Index kv_head, Urgency urgency);

/// Kept set of one head of the selected run under a setting, and its exact cost. Until the answer to a new
/// setting arrives, the last answer given in `slot` is returned (empty slot: none). If the setting cannot be
/// followed, `error` gives the reason.
Answer<WhatIf> ask_what_if(PanelContext& context, const WhatIfSettings& settings, Index layer, Index kv_head,
                           Urgency urgency, const Key& slot);
/// Cost of the kept set without compensation for the evicted tokens.
Answer<WhatIf> ask_kept_set(PanelContext& context, const WhatIfSettings& settings, Index layer, Index kv_head,
                            Urgency urgency, const Key& slot);

/// Down to which budget a setting keeps a token of one head, whatever its own budget is.
Answer<LeastBudget> ask_least_budget(PanelContext& context, const WhatIfSettings& settings, Index layer,
                                     Index kv_head, Index token, Urgency urgency);

/// Scores by which a setting ranks the tokens of one head; [l], empty if it ranks by no scores.
Answer<WhatIfScores> ask_scores(PanelContext& context, const WhatIfSettings& settings, Index layer,
                                Index kv_head, Urgency urgency);

/// The queue's budget among n tokens that are compared, at least one of them where there are any.
Index compared_budget(const AppState& state, Index n);

/// The selected head: the query head's own metrics where one is selected, else the sums of its group.
struct ComparedHead {
  Answer<HeadSummary> summary;
  Index layer = 0, kv_head = 0;
  std::optional<Index> query_head;  ///< query head of the metrics, 0..G-1; empty: the whole group
  std::string whose;   ///< "query head 1", "sum of 2 query heads"; empty where the group is one head
  Key key;             ///< for the keys of questions about it
  std::string called;  ///< Run::head_text()

  std::string title() const;  ///< "layer 3 head 1 query head 0"
};
ComparedHead ask_compared_head(PanelContext& context);

}  // namespace kvreplay::viewer
