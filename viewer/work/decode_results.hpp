#pragma once

#include "analysis/results/result_reader.hpp"
#include "viewer/work/decode_view.hpp"

#include <optional>
#include <string>

namespace kvreplay::viewer {

/// Why a run has nothing of a layer's decoding, as one clause; nothing where it has.
std::optional<std::string> why_no_decode_results(const ResultReader& results, Index layer);
/// The errors that `kvreplay evict` left of one head's decoding, a run for each policy, semantics and budget;
/// policies carry semantics and budget in their name where these differ. What the caches held is not in a
/// result folder: T, start, kept and left are empty. Throws InputError where the run has none, or a file is
/// not what it should be.
DecodeView read_decode(const ResultReader& results, Index layer, Index kv_head);

}  // namespace kvreplay::viewer
