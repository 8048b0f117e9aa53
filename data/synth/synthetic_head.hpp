#pragma once

#include "data/dump.hpp"
#include "data/synth.hpp"
#include "data/synth/portable_math.hpp"

#include <cstdint>
#include <vector>

namespace kvreplay {

/// Places that hold for the whole dump.
Planted plant(const SynthOptions& options);

/// One KV head of a layer and the queries that read it, row by row made of
///
///   - a centre that queries and keys share before the rotation: rotated, it prefers recent positions;
///   - normal noise, and key channels with a large mean (outliers), also before the rotation;
///   - directions that are planted after the rotation, so that they reach any distance: one for the sink
///   (sink heads),
///     one for the heavy hitters and one for the needle (the others). Everything else is made orthogonal to
///     them.
class SyntheticHead {
 public:
  SyntheticHead(const SynthOptions& options, const Planted& planted, Index layer, Index kv_head);

  /// [T, d] each, row-major.
  const std::vector<double>& keys() const { return keys_; }
  std::vector<double> values() const;
  /// Queries of the query head `query_head` of the whole layer.
  std::vector<double> queries(Index query_head) const;

 private:
  std::vector<double> make_keys() const;
  void rotate(Index position, double* row) const;
  void remove_planted(double* row) const;

  SynthOptions options_;
  const Planted& planted_;
  Index T_, d_;
  double scale_;
  bool sink_head_;
  CounterRandom random_;
  std::vector<double> inv_freq_;                 // [d / 2]
  std::vector<double> centre_;                   // [d]
  std::vector<std::vector<double>> directions_;  // sink heads: sink; others: heavy hitter, needle
  std::vector<double> keys_;                     // [T, d]
  double sink_logit_ = 0, hitter_logit_ = 0, needle_logit_ = 0;
};

/// log(n) to within a factor of 2: levels are planted with more room than that.
double coarse_log(Index n);

}  // namespace kvreplay
