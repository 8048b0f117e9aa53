#pragma once

#include "sim/compute.hpp"
#include "sim/head_group.hpp"
#include "sim/kept_set.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {

template <class T>
struct Cache;
struct DecodeRequest;
template <class T>
struct DecodeReplay;
struct GreedyPath;
template <class T>
struct OutputChanges;
struct PrunableKeys;
struct TokenMetrics;
struct TokenOptions;

/// A GPU, and the code that this build has for it.
struct ComputeDevice {
  int number = 0;  ///< as CUDA counts them
  std::string name = {};
  int capability = 0;        ///< compute capability, 10 major + minor
  std::size_t memory = 0;    ///< bytes
  int code = 0;              ///< compute capability that the device's code is written for; 0: it runs none
  bool from_ptx = false;     ///< the driver compiled that code: the build has none for the device itself
  int driver = 0;            ///< the newest CUDA that the driver supports, 10 major + minor
  int runtime = 0;           ///< the CUDA of this build
  std::string why_not = {};  ///< why the device cannot compute, as one clause; empty where it can
};

/// Computations over head groups in T. Each function is documented at the free function of its name.
template <class T>
class BackendOf {
 public:
  virtual ~BackendOf() = default;

  /// `stored`: the group's numbers as its dump holds them, which makes transfers to a device smaller; null
  /// where there are none. The bits of the result do not depend on it.
  virtual TokenMetrics token_metrics(const HeadGroup<T>& group, const TokenOptions& options, Workers& workers,
                                     const StoredGroup* stored = nullptr) const;
  virtual OutputChanges<T> output_changes(const HeadGroup<T>& group, RowRange rows,
                                          std::span<const Cache<T>> caches, bool with_vectors,
                                          Workers& workers) const;
  virtual Matrix<double> output_interaction(const HeadGroup<T>& group, RowRange rows,
                                            const PrunableKeys& keys, Workers& workers) const;
  virtual std::vector<DecodeReplay<T>> decode_replays(const HeadGroup<T>& group,
                                                      std::span<const DecodeRequest> runs,
                                                      const std::vector<Matrix<T>>& full,
                                                      Workers& workers) const;
};

/// Hardware that computes. This class is the CPU; a device's class overrides the functions that it has
/// kernels for. Callers use this interface, never a device's own functions. Everything in float64 runs on the
/// CPU, whatever the backend, except for the exact searches, which exist in float64 only.
class Backend : public BackendOf<float>, public BackendOf<double> {
 public:
  using BackendOf<float>::token_metrics, BackendOf<double>::token_metrics;
  using BackendOf<float>::output_changes, BackendOf<double>::output_changes;
  using BackendOf<float>::output_interaction, BackendOf<double>::output_interaction;
  using BackendOf<float>::decode_replays, BackendOf<double>::decode_replays;

  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  /// "cpu" or "cuda".
  virtual std::string_view name() const { return "cpu"; }
  /// True if token_metrics() is quicker with the group's numbers as its dump holds them.
  virtual bool reads_stored() const { return false; }
  /// The GPUs that it takes, all of one capability; none where it is the CPU.
  virtual std::vector<ComputeDevice> devices() const { return {}; }
  /// Number of calls that the CPU took over for want of device memory.
  virtual Index fell_back() const { return 0; }
  /// The call at which a device failed: the CPU takes over every call since. Empty where none has.
  virtual std::string failure() const { return ""; }

  virtual GreedyPath greedy_exact(const HeadGroup<double>& group, RowRange rows, Index keep,
                                  Workers& workers) const;
  virtual KeptSet exchange(const HeadGroup<double>& group, RowRange rows, KeptSet start,
                           Workers& workers) const;
};

}  // namespace kvreplay
