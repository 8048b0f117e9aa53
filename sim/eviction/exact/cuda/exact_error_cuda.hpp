#pragma once

#include "sim/cuda/transfer.hpp"
#include "sim/eviction/exact/cuda/exact_error_device.hpp"
#include "sim/eviction/exact/exact_error.hpp"
#include "sim/eviction/exact/greedy.hpp"

namespace kvreplay {

/// ExactError's twin on the calling thread's device: the same numbers to rounding, the same bits every time.
/// Device memory: 8 (3 R ceil32(l) + 6 R d_v + R d + T (d + d_v)) bytes and little more, R = G |rows|.
class DeviceExactError {
 public:
  DeviceExactError(const HeadGroup<double>& group, RowRange rows, const KeptSet& kept, bool insertions);

  double error();
  Index kept() const { return kept_; }
  std::vector<Insertion> insertions() const;
  BestRemoval best_removal_with(Index p);
  void remove(Index p);
  void insert(Index p);
  void sum_again();

  /// Removes the best token until `keep` are left. The host waits once, at the end.
  GreedyPath evict(Index keep, const Workers& workers);

 private:
  void scan(cuda::ErrorToken token, Index columns, bool store, double* error);
  void move(cuda::RowMove what, cuda::ErrorToken token, double* error);
  void fetch_report();

  const Index l_;
  Index kept_;
  const bool insertions_;
  const cuda::Stream stream_;
  cuda::DeviceArrays arrays_;
  cuda::ErrorTable table_{};
  cuda::PinnedBuffer<double> fetched_;
  bool fetched_is_old_ = true;
};

}  // namespace kvreplay
