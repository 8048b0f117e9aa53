#pragma once

#include "sim/eviction/policy.hpp"
#include "sim/head_group.hpp"
#include "sim/kept_set.hpp"
#include "sim/schedule.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

// Decoding with an eviction at every step, or every few. Definitions: sim/eviction/POLICIES.md (Phases).
//
// The cache starts as the prompt's kept set, less the tokens that a sliding window hides from all later rows.
// At position i = l, l+1, .. the token i joins. Where the dump has its queries, they attend over the cache;
// this is a step. The step's exact error is recorded, and each query head's row of scores is added to the
// cached tokens' sums. Then tokens that a sliding window hides from all later rows leave, and the cache is
// cut back to the budget. Kept are the rule's pins (the first tokens that the cache began with, and its own
// last ones), then the largest sums, unpooled, ties to the lower position.
//
// With DecodeOptions::interval nothing is summed: decoded tokens form a block like one of the prompt's, after
// which the cache is ranked anew (BlockCuts). Queries, keys and values always come from the uncompressed
// model.

namespace kvreplay {

struct Compute;  // sim/compute.hpp

struct DecodeOptions {
  /// Only the scores of the last `window` steps count, and none of the prompt's; at least 1. Unset: all steps
  /// and the prompt's rows count; Base::tova then behaves as with 1.
  std::optional<Index> window = {};
  /// No cached token is ever evicted. A new token stays if it ranks among the first `budget` tokens of the
  /// cache together with itself, pins aside; if not, it leaves at once.
  bool append_only = false;
  Index interval = 0;  ///< positions from cut to cut; 0: a cut at every step, by sums
};

/// A token that leaves the cache, in the cut that follows a step.
struct DecodeMove {
  /// Index into DecodeReplay::change_sq. Negative for a cut after a position without a query, before the
  /// first step: -1 for the last such position.
  Index step = 0;
  Index position = 0;
  bool operator==(const DecodeMove&) const = default;
};

/// Result of one run; steps are the positions l..T-1 that have queries.
template <class T>
struct DecodeReplay {
  std::vector<double> change_sq;  ///< [steps], sum over the query heads of ||o^C_i - o_i||^2
  std::vector<double> full_sq;    ///< [steps], sum over the query heads of ||o_i||^2
  std::vector<Matrix<T>> change;  ///< G of [steps, d_v], o^C_i - o_i
  KeptSet kept;                   ///< [l], the prompt positions that are left at the end
  Index cache_size = 0;           ///< at the end, decoded positions included
  Index first_step = 0;           ///< the position of step 0; T where there are no steps
  /// Evicted tokens, ascending by step, then position. A token that append-only turns away leaves in the
  /// step at which it joined. The cache after step s holds start and the positions l..first_step + s less
  /// those that left at steps up to s.
  std::vector<DecodeMove> left;
};

/// Last row that sees each position's token, [T]: l - 1 for tokens that the prompt's cut evicted, T for
/// tokens in the cache at the end of a run that began with `start`.
template <class T>
std::vector<std::int32_t> last_rows(const KeptSet& start, Index T_all, const DecodeReplay<T>& replay);

/// Number of tokens that each step attends over, [steps].
template <class T>
std::vector<double> step_tokens(const KeptSet& start, const DecodeReplay<T>& replay);

/// Why a rule cannot rank a cache while decoding, as one clause; nothing where it can.
std::optional<std::string> why_not_in_decoding(const EvictionRule& rule);

/// Reason why a rule cannot rank a cache at intervals, as one clause; nothing where it can.
std::optional<std::string> why_not_at_intervals(const EvictionRule& rule);

/// Initial sums of the prompt's tokens: the rule's scores over its window, not pooled, [1, l]; for caote and
/// fastcaote the attention of each query head, [G, l]; 0 where the dump has no prompt queries. Empty where
/// nothing is carried over. Serves every budget. The backend computes the scores.
template <class T>
Matrix<double> decode_start_scores(const HeadGroup<T>& group, const EvictionRule& rule,
                                   const DecodeOptions& options, const Compute& compute);

/// o_i over all positions up to i, G of [steps, d_v]. Serves every run over the group.
template <class T>
std::vector<Matrix<T>> decode_full_outputs(const HeadGroup<T>& group, Workers& workers);

/// One run over a causal group. `start_scores` and `full` are the results of the two functions above. For a
/// rule with per_visible_row a token's sum is divided by the number of rows in the sum that are at or after
/// the token's position. Takes 4 G n d flops a step for a cache of n tokens. Holds n (d + 2 d_v) numbers of T
/// and a few rows of n doubles; with a window, one more such row for each of its steps (per query head for
/// caote and fastcaote); the results; and, at intervals, a copy of the cache at each cut. Runs on the calling
/// thread: distribute runs over threads. Throws InputError where a number overflows T, Interrupted where the
/// workers are stopping.
template <class T>
DecodeReplay<T> decode_replay(const HeadGroup<T>& group, const EvictionRule& rule, const KeptSet& start,
                              Index budget, const DecodeOptions& options, const Matrix<double>& start_scores,
                              const std::vector<Matrix<T>>& full, Workers& workers);

/// One of several runs over a group; the objects pointed to outlive the call.
struct DecodeRequest {
  const EvictionRule* rule = nullptr;
  const KeptSet* start = nullptr;
  Index budget = 0;
  DecodeOptions options;
  const Matrix<double>* start_scores = nullptr;
};

/// decode_replay() for a running model. The queries, key and value of every position behind the prompt arrive
/// when it is decoded; step() returns the positions that leave the cache.
template <class T>
class DecodingCache {
 public:
  /// The group must have room for all positions, and the prompt's numbers; otherwise as for decode_replay().
  DecodingCache(std::shared_ptr<HeadGroup<T>> group, const EvictionRule& rule, const KeptSet& start,
                Index budget, const DecodeOptions& options, const Matrix<double>& start_scores);
  ~DecodingCache();

  /// Adds the next position, whose numbers the group must have by now: it joins, attends, and the cache is
  /// cut. Returns the positions that leave the cache, ascending.
  std::vector<Index> step();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// decode_replay() for each run, in parallel on the workers.
template <class T>
std::vector<DecodeReplay<T>> decode_replays(const HeadGroup<T>& group, std::span<const DecodeRequest> runs,
                                            const std::vector<Matrix<T>>& full, Workers& workers);

/// True if decode_replays_cuda() accepts a run: its policy ranks by sums of row scores or by the tokens' own
/// numbers, and keeps no other state. A device accelerates scores only; all other policies run on the CPU.
bool decodes_on_device(const EvictionRule& rule, const DecodeOptions& options);

/// CUDA version of decode_replay(), on the calling thread's device, for runs that decodes_on_device(). Logits
/// and outputs are float32, weights and sums of scores float64. The bits are the same in every run, whatever
/// other runs there are. A cache that holds every token has the full output itself. A step of a cache of n
/// tokens reads 4 n (d + d_v) bytes for each 4 query heads, and the values again for scores of ||v - o||, all
/// from one multiprocessor: at 50 to 100 GB/s 10 to 20 us for n = 1024, d = d_v = 128. Runs share all
/// multiprocessors, so it takes many to fill a device. Holds the group, the results and some 140 bytes (and 8
/// for each step of a window) for each token that a run can hold. The limit is `workspace` bytes, or a fifth
/// of the free device memory where that is less, and at least one run; runs that find no room wait. Throws
/// DeviceError and OutOfDeviceMemory besides the exceptions of decode_replay().
std::vector<DecodeReplay<float>> decode_replays_cuda(const HeadGroup<float>& group,
                                                     std::span<const DecodeRequest> runs,
                                                     const std::vector<Matrix<float>>& full, Workers& workers,
                                                     std::size_t workspace = std::size_t{8} << 30);

/// Reference: float64 from the definitions. The cache is rebuilt and its scores are recomputed by brute force
/// at every step. Shares no code with the fast version.
DecodeReplay<double> decode_replay_reference(const HeadGroup<double>& group, const EvictionRule& rule,
                                             const KeptSet& start, Index budget,
                                             const DecodeOptions& options);

}  // namespace kvreplay
