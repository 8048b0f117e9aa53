#pragma once

#include "sim/kept_set.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvreplay::viewer {

/// The tokens that a kept set lacks though they are among the as many largest of a truth.
struct WronglyEvicted {
  struct Token {
    Index token = 0;
    Index by_score = 0;  ///< its place by what ranked the kept set, from 1 on; 0: nothing did
    Index by_truth = 0;  ///< its place by the truth, from 1 on
    double truth = 0;
  };
  std::vector<Token> tokens;  ///< by the truth's rank
  Index kept = 0;             ///< tokens in the kept set
  double missed = 0;          ///< their share of the truth's sum; NaN where that is not above 0
};
/// `score` and `truth` are [l], `score` may be empty; ties: the lower position first. NaN
/// comes last. O(l log l).
WronglyEvicted wrongly_evicted(std::span<const double> score, std::span<const double> truth,
                               const KeptSet& kept);
std::size_t bytes_of(const WronglyEvicted& found);

}  // namespace kvreplay::viewer
