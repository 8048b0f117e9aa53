#pragma once

#include "analysis/eviction/head_evictions.hpp"
#include "analysis/run/stage.hpp"
#include "sim/eviction/decode/decode.hpp"
#include "viewer/work/desk.hpp"
#include "viewer/work/policy_settings.hpp"

#include <limits>
#include <string>
#include <vector>

// Decoding of one head under several policies at one budget: the error at every step, and what the cache
// holds at any of them. Every figure is that of `kvreplay evict --phase decode,append-only` with the same
// options.

namespace kvreplay::viewer {

struct DecodeSettings : PolicySettings {
  std::vector<std::string> policies = {"snapkv", "h2o", "streaming"};
  bool decode = true;                  ///< the phase that evicts at every step
  bool append_only = false;            ///< the phase that never evicts an old token
  std::optional<Index> decode_window;  ///< only the scores of the last so many steps count
  bool operator==(const DecodeSettings&) const = default;
};
/// For sessions; names of policies are the plan's matter.
BoundOptions bound(DecodeSettings& settings);

/// The policy with this window of its own, in brackets: "snapkv[window=16]"; as it is where it looks at none.
std::string with_window(const std::string& policy, Index window);
/// Whether the one is the other, or that with a window: with_window().
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

/// What serves every budget, pooling and pin: the prompt's ranking of each policy, for h2o that of all l
/// rows, and the sums that decoding goes on from. About 8 (G + 2) l bytes a policy.
struct DecodeStarts {
  HeadRanking ranking;                 ///< of the plan's runs
  std::vector<Matrix<double>> scores;  ///< [cases], decode_start_scores()
};
/// What it depends on besides the head.
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
/// `starts` are this head's under the same starts_key().
DecodeView decode_view(const HeadGroup<float>& group, const DecodePlan& plan, const DecodeOutputs& outputs,
                       const DecodeStarts& starts, JobControl& job);

/// What a cache holds after the cut that follows step `step` (0 .. steps - 1): [T], 1 where the position is
/// in it. -1: after the prompt, before any decoded position.
std::vector<std::uint8_t> cache_after(const DecodeRun& run, Index step);
/// How many tokens it holds after every step, [steps].
std::vector<Index> cache_sizes(const DecodeRun& run);

std::size_t bytes_of(const DecodeOutputs& outputs);
std::size_t bytes_of(const DecodeStarts& starts);
std::size_t bytes_of(const DecodeView& view);

/// When each position of a decoding run leaves the cache: what cache_after() says, for all steps at once.
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

std::size_t bytes_of(const CacheFates& fates);

}  // namespace kvreplay::viewer
