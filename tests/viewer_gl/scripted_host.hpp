#pragma once

#include "data/utf8.hpp"
#include "viewer/gl/headless_host.hpp"

#include <cctype>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay::viewer {

/// The character that a key types; 0 for none.
inline unsigned typed_by(const Shortcut& shortcut) {
  if (shortcut.control || shortcut.alt) return 0;
  if (shortcut.key == "Space") return ' ';
  if (shortcut.key.size() != 1) return 0;
  const auto sign = static_cast<unsigned char>(shortcut.key[0]);
  return std::isalpha(sign) != 0 && !shortcut.shift ? static_cast<unsigned>(std::tolower(sign)) : sign;
}

/// A headless host with hands: input is queued and reaches the client with the following frames. The same
/// script gives the same pixels.
class ScriptedHost : public HeadlessHost {
 public:
  using HeadlessHost::HeadlessHost;

  /// Frames until all input has been told, and `after` more frames, so that hovering and what opens settles.
  void settle(int after = 3) {
    while (!input_.empty()) frame();
    for (int i = 0; i < after; ++i) frame();
  }
  void resize(int width, int height, float scale) {
    context_.make_current();
    buffer_.resize(width, height);
    scale_ = scale;
  }

  void move_mouse(float x, float y) { input_.move(x, y); }
  void press_button(int button = 0) { input_.button(button, true); }
  void release_button(int button = 0) { input_.button(button, false); }
  void click(float x, float y, int button = 0) {
    move_mouse(x, y);
    press_button(button);
    release_button(button);
  }
  /// In eight steps, each with a frame of its own.
  void drag(float from_x, float from_y, float to_x, float to_y, int button = 0) {
    move_mouse(from_x, from_y);
    press_button(button);
    settle(0);
    constexpr int steps = 8;
    for (int i = 1; i <= steps; ++i) {
      const float part = static_cast<float>(i) / steps;
      move_mouse(from_x + (to_x - from_x) * part, from_y + (to_y - from_y) * part);
      frame();
    }
    release_button(button);
  }
  void wheel(float dx, float dy) { input_.wheel(dx, dy); }
  /// Until the next hold().
  void hold(Modifiers modifiers) {
    held_ = modifiers;
    input_.modifiers(modifiers);
  }
  /// As a keyboard would: with its modifiers and the character that it types.
  void press_key(const Shortcut& shortcut) {
    const Modifiers with{shortcut.control || held_.control, shortcut.shift || held_.shift,
                         shortcut.alt || held_.alt};
    input_.modifiers(with);
    input_.key(shortcut, true);
    if (const unsigned character = typed_by(shortcut); character != 0) input_.character(character);
  }
  void release_key(const Shortcut& shortcut) {
    input_.key(shortcut, false);
    input_.modifiers(held_);
  }
  void tap_key(const Shortcut& shortcut) {
    press_key(shortcut);
    release_key(shortcut);
  }
  void type(std::string_view utf8) {
    while (!utf8.empty()) {
      const Character next = first_character(utf8);
      utf8.remove_prefix(next.bytes.size());
      if (next.code >= 0x80) {
        input_.character(next.code);
        continue;
      }
      const auto typed = static_cast<int>(next.code);
      const std::string key = typed == ' ' ? "Space" : std::string(1, static_cast<char>(std::toupper(typed)));
      tap_key({.key = key, .shift = std::isupper(typed) != 0});
    }
  }
  void drop(const std::vector<std::filesystem::path>& paths) { client_->dropped(paths); }

 private:
  Modifiers held_;
};

}  // namespace kvreplay::viewer
