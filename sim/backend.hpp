#pragma once

#include "sim/tokens/token_metrics.hpp"

#include <atomic>
#include <memory>
#include <string>

// Which hardware computes. Callers name a backend and never a twin.

namespace kvreplay {

struct Backend {
  bool cuda = false;
  /// Whether the CPU takes over a head group for which the device has no memory.
  bool falls_back = false;
  /// How many it took over.
  std::shared_ptr<std::atomic<Index>> fell_back = std::make_shared<std::atomic<Index>>(0);
};

/// Why this machine and build cannot compute on a CUDA device, as one clause; empty where they can.
std::string why_no_cuda();

/// float64 runs on the CPU whatever the backend.
TokenMetrics token_metrics(const Backend& backend, const HeadGroup<float>& group, const TokenOptions& options,
                           Workers& workers);
TokenMetrics token_metrics(const Backend& backend, const HeadGroup<double>& group,
                           const TokenOptions& options, Workers& workers);

}  // namespace kvreplay
