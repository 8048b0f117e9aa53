#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>

namespace kvreplay::viewer {

/// Latest message at the bottom of the window. A message stays for kShown; an error stays at least as long,
/// until a later job succeeds.
class StatusLine {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kShown{6};

  void say(std::string text, bool is_error, Clock::time_point now) {
    text_ = std::move(text);
    is_error_ = is_error;
    old_ = false;
    said_ = now;
  }
  /// A job ended well.
  void went_well() { old_ = true; }
  /// A job that was requested at this time ended well: an earlier error is removed at once.
  void went_well_since(Clock::time_point asked) {
    if (is_error_ && said_ < asked) *this = {};
  }

  /// Empty if there is no message to show.
  const std::string& text(Clock::time_point now) const {
    static const std::string nothing;
    return goes() && now - said_ >= kShown ? nothing : text_;
  }
  bool is_error() const { return is_error_; }
  /// Time left until the message disappears; empty if there is no message, or if no timeout applies.
  std::optional<Clock::duration> left(Clock::time_point now) const {
    return !goes() || text(now).empty() ? std::nullopt : std::optional(said_ + kShown - now);
  }

 private:
  bool goes() const { return !is_error_ || old_; }

  std::string text_;
  bool is_error_ = false, old_ = false;
  Clock::time_point said_{};
};

}  // namespace kvreplay::viewer
