#include "viewer/model/status_line.hpp"

#include <utility>

namespace kvreplay::viewer {

void StatusLine::say(std::string text, bool is_error, Clock::time_point now) {
  text_ = std::move(text);
  is_error_ = is_error;
  old_ = false;
  said_ = now;
}

void StatusLine::went_well_since(Clock::time_point asked) {
  if (is_error_ && said_ < asked) *this = {};
}

const std::string& StatusLine::text(Clock::time_point now) const {
  static const std::string nothing;
  return goes() && now - said_ >= kShown ? nothing : text_;
}

std::optional<StatusLine::Clock::duration> StatusLine::left(Clock::time_point now) const {
  if (!goes() || text(now).empty()) return std::nullopt;
  return said_ + kShown - now;
}

}  // namespace kvreplay::viewer
