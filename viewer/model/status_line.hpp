#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>

namespace kvreplay::viewer {

/// What was last said at the window's foot, for as long as it matters: some seconds; an error until something
/// went well after it, and at least as long.
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
  /// What was asked for at that time went well: an error from before goes at once.
  void went_well_since(Clock::time_point asked) {
    if (is_error_ && said_ < asked) *this = {};
  }

  /// Empty where there is nothing to say any more.
  const std::string& text(Clock::time_point now) const {
    static const std::string nothing;
    return goes() && now - said_ >= kShown ? nothing : text_;
  }
  bool is_error() const { return is_error_; }
  /// How long the text still stands; empty where there is none, or where it goes by no time.
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
