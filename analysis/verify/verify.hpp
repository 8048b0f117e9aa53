#pragma once

#include "analysis/tokens/token_agreement.hpp"
#include "analysis/verify/check.hpp"
#include "data/dump.hpp"
#include "sim/compute.hpp"

#include <functional>
#include <vector>

namespace kvreplay {

struct VerifyOptions {
  Index tokens = 64;  ///< sampled per head for brute force, each by some metric; 0: all by every metric
  Index window = 32;
  std::vector<Index> layers;
  /// Called at the start and after every head group, by one thread at a time.
  std::function<void(Index done, Index total)> on_progress;
};

struct VerifyResult {
  std::vector<Check> checks;
  AgreementTable table;  ///< of the float64 metrics
  bool ok() const;
};

/// Checks every head group: the closed forms against recomputed attention on sampled tokens, the backend's
/// float32 (unless the precision is f64) against float64 on all, kept sets, channels and caches against brute
/// force, and the replayed outputs against the dump's own. Several head groups at once, but large ones one by
/// one; the result does not depend on the threads. Memory: a head group in both precisions for each that is
/// under way.
VerifyResult verify(const Dump& dump, const VerifyOptions& options, const Compute& compute);

}  // namespace kvreplay
