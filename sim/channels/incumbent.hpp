#pragma once

#include "sim/channels/convex_bound.hpp"

namespace kvreplay {

/// The best set that a search has found.
class Incumbent {
 public:
  /// H [d, d] must outlive it.
  Incumbent(const Matrix<double>& H, ChannelSet fixed, const ChannelSet& first);

  void offer(const ChannelSet& set);
  /// The set that x rounds to: its k largest, and what the problem has taken. Returns it.
  ChannelSet offer_rounded(const SubsetProblem& problem, const Vector<double>& x);
  /// The only set that a closed problem leaves, if there is one.
  void offer_closed(const SubsetProblem& problem);
  /// The set itself and what exchanges make of it.
  void offer_exchanged(const ChannelSet& set);

  const ChannelSet& set() const { return set_; }
  double error() const { return error_; }
  /// A set counts as better below this: E less 1e-11 of the sum of |H_ce| over the set.
  double limit() const { return limit_; }

 private:
  const Matrix<double>& H_;
  ChannelSet fixed_, set_;
  double error_ = 0, limit_ = 0;
};

}  // namespace kvreplay
