#pragma once

#include "viewer/panels/questions.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// A question that is put to each of many heads (or layers) in the background, a few at a time, until all
/// have answered.
class BackgroundRound {
 public:
  void restart(Index count) {
    answered_.assign(count, 0);
    done_ = failed_ = 0;
    error_.clear();
  }
  /// `ask(i)` puts the question and gives the desk's Answer; `take(i, answer)` takes it once it is there,
  /// at most `most` of them a call, with `answer` false where it failed. At most `at_once` are left open.
  /// Whether some were left for another frame though they may be there.
  template <class Ask, class Take>
  bool go_on(const Ask& ask, const Take& take, Index most = kAll, int at_once = kAskedAtOnce) {
    int waiting = 0;
    for (Index i = 0; i < count() && waiting < at_once; ++i) {
      if (answered(i)) continue;
      if (most == 0) return true;
      const auto answer = ask(i);
      if (answer.pending) {
        ++waiting;
        continue;
      }
      answered_[i] = 1;
      ++done_;
      --most;
      if (!answer && failed_++ == 0) error_ = answer.error;
      take(i, answer);
    }
    return false;
  }

  Index count() const { return std::ssize(answered_); }
  bool answered(Index i) const { return answered_[i] != 0; }
  Index done() const { return done_; }  ///< those that failed among them
  Index failed() const { return failed_; }
  const std::string& error() const { return error_; }  ///< of the first that failed

 private:
  static constexpr Index kAll = -1;
  std::vector<std::uint8_t> answered_;
  Index done_ = 0, failed_ = 0;
  std::string error_;
};

}  // namespace kvreplay::viewer
