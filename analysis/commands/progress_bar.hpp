#pragma once

#include "data/dump.hpp"

#include <chrono>
#include <string>

namespace kvreplay {

/// A line on standard error that is drawn over and over, and gone in the end; nothing where standard error is
/// no terminal.
class ProgressBar {
 public:
  /// `label` stands in front of the bar.
  explicit ProgressBar(bool wanted, std::string label = "");
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void show(Index done, Index total);

 private:
  using Clock = std::chrono::steady_clock;
  bool drawing_;
  std::string label_;
  bool drawn_ = false;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point last_{};
};

}  // namespace kvreplay
