#pragma once

#include "viewer/panels/questions.hpp"
#include "viewer/work/wrongly_evicted.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::viewer {

/// What the shown setting wrongly evicts from the selected head, and who would have kept it.
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
