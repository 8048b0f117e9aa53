#pragma once

#include "analysis/eviction/eviction_plan.hpp"
#include "sim/eviction/prompt_eviction.hpp"

namespace kvreplay {

/// A score of every candidate each, [layers, n_kv, l] floating point, higher is kept. Throws InputError for a
/// name that is taken or of other characters than letters, digits, '_' and '.', and a file of another shape.
std::vector<GivenArray<double>> read_given_scores(const std::vector<NamedFile>& files,
                                                  const DumpShape& shape);

/// The same for kept sets, [layers, n_kv, l] booleans.
std::vector<GivenArray<std::uint8_t>> read_given_kept(const std::vector<NamedFile>& files,
                                                      const DumpShape& shape);

/// One KV head's part of every score, [l] each; `head` counts all heads of all layers of the dump.
GivenScores scores_of_head(const std::vector<GivenArray<double>>& scores, Index head, Index l);

/// How many tokens every head keeps; empty where heads differ.
std::optional<Index> common_count(const GivenArray<std::uint8_t>& kept, const DumpShape& shape);

/// 16 hex digits that tell the contents of given arrays apart.
std::string contents_fingerprint(const GivenArray<double>& given);
std::string contents_fingerprint(const GivenArray<std::uint8_t>& given);

}  // namespace kvreplay
