#pragma once

#include "viewer/model/actions.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Messages from a browser to the dashboard: one JSON object each. page.html sends them.

namespace kvreplay::viewer {

struct WebEvent {
  enum class Kind {
    size,    ///< width, height in pixels, scale of them a point
    move,    ///< x, y in pixels
    leave,   ///< the mouse is elsewhere
    button,  ///< number, down; x, y
    wheel,   ///< x, y in steps
    key,     ///< shortcut, down; characters that it types
    blur,    ///< the page lost the keyboard
    paste,   ///< text
    seen     ///< number of the last frame that was drawn
  };
  Kind kind = Kind::leave;
  double x = 0, y = 0, scale = 1;
  int number = 0;
  bool down = false;
  bool control = false, shift = false, alt = false;
  Shortcut shortcut = {};              ///< empty where the key is none of a shortcut
  std::vector<unsigned> characters{};  ///< code points that a key types
  std::string text{};
};

/// Longer messages are refused.
inline constexpr std::size_t kMostMessage = std::size_t{1} << 20;

/// Nothing for what is no such message: other JSON, numbers out of range, text that is no UTF-8.
std::optional<WebEvent> web_event(std::string_view message);

/// Shortcut of a key that a browser calls `name` (KeyboardEvent.key); empty if the key has no meaning here.
/// Alt plus a key whose control combination browsers reserve counts as control plus that key.
Shortcut shortcut_of_web(const std::string& name, bool control, bool shift, bool alt);

}  // namespace kvreplay::viewer
