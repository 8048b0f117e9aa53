#pragma once

#include "viewer/work/run.hpp"

#include <memory>
#include <string>

// Two runs of one prompt, held against each other head by head and token by token.

namespace kvreplay::viewer {

/// Why their numbers do not stand for the same tokens, in one sentence; empty where they do: the same heads,
/// and the same prompt, as the tokens of both dumps say, or where one dump is behind both.
std::string why_not_comparable(const Run& run, const Run& other);

/// The run that others are held against.
class PinnedRun {
 public:
  void pin(std::shared_ptr<const Run> run) { run_ = std::move(run), compared_ = -1; }
  const std::shared_ptr<const Run>& run() const { return run_; }
  /// why_not_comparable() with the pinned run, which there is; kept for the run that asked last.
  const std::string& why_not(const Run& run);

 private:
  std::shared_ptr<const Run> run_;
  int compared_ = -1;
  std::string why_not_;
};

}  // namespace kvreplay::viewer
