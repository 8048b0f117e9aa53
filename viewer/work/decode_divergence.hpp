#pragma once

#include "viewer/work/decode_view.hpp"

#include <optional>
#include <vector>

// Where decoding under one cache goes wrong and under another does not.

namespace kvreplay::viewer {

/// Of one decoding run from another, its reference.
struct Divergence {
  std::size_t run = 0;  ///< number of the run
  Index step = 0;
  Index position = 0;  ///< the token that it lacks there: of those that the reference holds, the one that
                       ///< left last, the highest position among equals
  Index left_at = 0;   ///< when, as in CacheFates
};

/// How many times the reference's error makes a divergence.
inline constexpr double kDiverges = 2;
/// The first step at which the run's error is more than kDiverges times the reference's while its cache,
/// after the step's cut, lacks a token that the reference's holds; none where there is none. Both are of one
/// prompt. O(steps + T) where nothing diverges, O(T) a step where errors do and no token is lacking.
std::optional<Divergence> first_divergence(const DecodeRun& run, const CacheFates& fates,
                                           const DecodeRun& reference, const CacheFates& of_reference);

/// Of every run that diverges, by step: from the run of the same policy and phase in `pinned`, where that has
/// any, else from the one of `runs` with the least mean error. Fates are of the runs; without them, nothing.
std::vector<Divergence> divergences(const std::vector<DecodeRun>& runs, const std::vector<CacheFates>& fates,
                                    const std::vector<DecodeRun>& pinned,
                                    const std::vector<CacheFates>& of_pinned);
/// The run of the same policy and phase; its number, none where there is none.
std::optional<std::size_t> same_run(const std::vector<DecodeRun>& runs, const DecodeRun& wanted);
/// The one with the least mean error, by number; none where no mean is a number.
std::optional<std::size_t> least_error(const std::vector<DecodeRun>& runs);

}  // namespace kvreplay::viewer
