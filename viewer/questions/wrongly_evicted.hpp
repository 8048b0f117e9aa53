#pragma once

#include "sim/kept_set.hpp"
#include "viewer/questions/ask.hpp"

#include <cstddef>
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
inline std::size_t bytes_of(const WronglyEvicted& answer) { return bytes_with(answer, answer.tokens); }

/// Tokens that the shown setting wrongly evicts from the selected head, and the settings and policies that
/// would have kept them.
class EvictedSource {
 public:
  /// Asks for it, and with `policies` for what the usual ones keep of as many tokens.
  void ask(PanelContext& context, TokenMetric truth, bool policies);

  /// Null until it is known; while a newer setting is computed, that of the last one.
  const WronglyEvicted* found() const { return found_.value.get(); }
  /// "A, B, h2o": whose kept sets hold a token, as far as they are known.
  std::string kept_by(Index token) const;
  bool pending() const { return pending_; }
  const std::string& error() const { return error_; }

 private:
  Answer<WronglyEvicted> found_;
  std::vector<std::pair<std::string, std::shared_ptr<const WhatIf>>> sets_;
  Key run_;
  bool pending_ = false;
  std::string error_;
};

}  // namespace kvreplay::viewer
