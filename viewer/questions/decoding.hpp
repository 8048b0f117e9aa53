#pragma once

#include "analysis/eviction/head_evictions.hpp"
#include "analysis/results/result_reader.hpp"
#include "analysis/run/stage.hpp"
#include "sim/eviction/decode/decode.hpp"
#include "viewer/questions/job_queue.hpp"
#include "viewer/questions/policy_settings.hpp"

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay::viewer {

class Run;
struct PanelContext;

// Decoding of one head under several policies at one budget: the error at every step, and what the cache
// holds at any of them. Every figure is that of `kvreplay evict --phase decode,append-only` with the same
// options.

namespace decoding_option {
inline constexpr OptionFacts interval{
    "interval", "N", "Steps from cut to cut, each of which ranks the cache anew", "every step, by sums", 1};
}  // namespace decoding_option

struct DecodeSettings : PolicySettings {
  std::vector<std::string> policies = {"snapkv", "h2o", "streaming"};
  bool decode = true;                  ///< the phase that evicts at every step
  bool append_only = false;            ///< the phase that never evicts an old token
  std::optional<Index> decode_window;  ///< only the scores of the last so many steps count
  std::optional<Index> interval;       ///< steps from cut to cut, decode:N; unset: cuts at every step
  PromptCache prompt = PromptCache::cut;
  bool operator==(const DecodeSettings&) const = default;
};
/// For sessions; names of policies are the plan's matter.
BoundOptions bound(DecodeSettings& settings);

/// The policy with this window of its own, in brackets: "snapkv[window=16]"; as it is where it looks at none.
std::string with_window(const std::string& policy, Index window);
/// True if `policy` is `plain`, or `plain` with a window as with_window() writes it.
bool is_with_window(const std::string& policy, const std::string& plain);

/// The options of `evict` that they stand for. Throws OptionError where a policy is none.
EvictionOptions evict_options_of(const DecodeSettings& settings);

struct DecodePlan {
  EvictionPlan plan;              ///< its cases all decode; may be none
  std::vector<LeftOut> left_out;  ///< policies that cannot decode on this dump, and why
};
/// Throws InputError, one line, where no policy could: a bad budget, unknown words, a dump without decoding
/// steps with queries.
DecodePlan decode_plan(const DecodeSettings& settings, const Dump& dump);

/// Outputs over the whole cache: serves every run over the head. 4 G steps d_v bytes.
struct DecodeOutputs {
  std::vector<Matrix<float>> full;  ///< G of [steps, d_v]
};
DecodeOutputs decode_outputs(const HeadGroup<float>& group, JobControl& job);

/// Data that serve every budget, pooling and pin: the prompt's ranking by each policy (for h2o over all l
/// rows), and the sums with which decoding continues. About 8 (G + 2) l bytes for each policy.
struct DecodeStarts {
  HeadRanking ranking;                 ///< of the plan's runs
  std::vector<Matrix<double>> scores;  ///< [cases], decode_start_scores()
};
/// Key of everything that decode_starts() depends on besides the head.
Key starts_key(const DecodePlan& plan);
DecodeStarts decode_starts(const HeadGroup<float>& group, const DecodePlan& plan, JobControl& job);

struct DecodeRun {
  std::string policy;
  bool append_only = false;
  Index budget = 0;  ///< tokens
  Index l = 0, T = 0;
  Index first_step = 0;       ///< the position of step 0
  std::vector<double> error;  ///< [steps], output_error: 0 where nothing changes, nan where the output is 0
  double mean = 0, max = 0, last = 0;  ///< of error, as in decode.csv; nan without steps
  KeptSet start;                       ///< [l], the prompt's kept set that decoding begins with
  KeptSet kept;                        ///< [l], what is left of it at the end
  std::vector<DecodeMove> left;        ///< ascending by step, then position
  Index steps() const { return std::ssize(error); }
};
struct DecodeView {
  std::vector<DecodeRun> runs;  ///< one for each case of the plan
  std::vector<std::string> notes;
};
/// `starts` are this head's under the same starts_key(). Errors are of `heads` of the group's query heads
/// from `first` on, where several layers read its cache; 0: of all.
DecodeView decode_view(const HeadGroup<float>& group, const DecodePlan& plan, const DecodeOutputs& outputs,
                       const DecodeStarts& starts, JobControl& job, Index first = 0, Index heads = 0);

/// Number of tokens in the cache after the cut of every step, [steps].
std::vector<Index> cache_sizes(const DecodeRun& run);

inline std::size_t bytes_of(const DecodeOutputs& answer) { return bytes_with(answer, answer.full); }
inline std::size_t bytes_of(const DecodeStarts& answer) {
  return bytes_with(answer, answer.ranking.scores, answer.scores);
}
inline std::size_t bytes_of(const DecodeRun& run) {
  return bytes_with(run, run.error, run.start, run.kept, run.left);
}
inline std::size_t bytes_of(const DecodeView& view) { return bytes_with(view, view.runs, view.notes); }

/// Step at which each position of a decoding run leaves the cache.
struct CacheFates {
  static constexpr Index kStays = std::numeric_limits<Index>::max();
  static constexpr Index kWithPrompt = std::numeric_limits<Index>::min();
  /// [T], the step whose cut it leaves in; kStays; kWithPrompt where it was evicted before the first cut.
  std::vector<Index> left_at;
  Index first_step = 0;  ///< the position of step 0
};
CacheFates cache_fates(const DecodeRun& run);

enum class Held {
  not_there_yet,
  kept,
  leaves_now,  ///< in the cut that follows the step
  gone,
};
/// `position` in [0, T), `step` from 0.
Held held_at(const CacheFates& fates, Index position, Index step);

/// Reason why a run has no results on a layer's decoding, as one clause; nothing if it has.
std::optional<std::string> why_no_decode_results(const ResultReader& results, Index layer);
/// The errors that `kvreplay evict` left of one head's decoding, a run for each policy, semantics and budget;
/// policies carry semantics and budget in their name where these differ. What the caches held is not in a
/// result folder: T, start, kept and left are empty. Throws InputError where the run has none, or a file is
/// not what it should be.
DecodeView read_decode(const ResultReader& results, Index layer, Index kv_head);

// Divergence: decoding under one cache goes wrong while under another it does not.

/// Divergence of one decoding run from another, its reference.
struct Divergence {
  std::size_t run = 0;  ///< number of the run
  Index step = 0;
  Index position = 0;  ///< the token that it lacks there: of those that the reference holds, the one that
                       ///< left last, the highest position among equals
  Index left_at = 0;   ///< when, as in CacheFates
};

/// Multiple of the reference's error above which an error counts as a divergence.
inline constexpr double kDiverges = 2;
/// The first step at which the run's error is more than kDiverges times the reference's while its cache,
/// after the step's cut, lacks a token that the reference's holds; none where there is none. Both are of one
/// prompt. O(steps + T) where nothing diverges, O(T) a step where errors do and no token is lacking.
std::optional<Divergence> first_divergence(const DecodeRun& run, const CacheFates& fates,
                                           const DecodeRun& reference, const CacheFates& of_reference);

/// Divergences of all runs that have one, by step: from the run of the same policy and phase in `pinned`,
/// where that has any, else from the one of `runs` with the least mean error. Fates are of the runs; without
/// them, nothing.
std::vector<Divergence> divergences(const std::vector<DecodeRun>& runs, const std::vector<CacheFates>& fates,
                                    const std::vector<DecodeRun>& pinned,
                                    const std::vector<CacheFates>& of_pinned);
/// The run of the same policy and phase; its number, none where there is none.
std::optional<std::size_t> same_run(const std::vector<DecodeRun>& runs, const DecodeRun& wanted);
/// The one with the least mean error, by number; none where no mean is a number.
std::optional<std::size_t> least_error(const std::vector<DecodeRun>& runs);

/// Data of the selected head's decoding that are known in this frame.
struct DecodeAnswers {
  std::shared_ptr<const DecodeView> view;  ///< of these settings, or of older ones (`stale`)
  std::vector<CacheFates> fates;           ///< of view->runs; none where the dump is gone
  std::vector<LeftOut> left_out;
  bool pending = false, stale = false;
  std::string error;
};

/// Reason why neither the run's dump, which is missing, nor its results provide its decoding; nothing if
/// either does.
std::optional<std::string> why_no_decoding(const Run& run, Index layer);

/// Asks the queue for it: from the dump, or from what `kvreplay evict` left where the dump is gone.
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
