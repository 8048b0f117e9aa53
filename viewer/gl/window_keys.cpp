#include "viewer/gl/window_keys.hpp"

#include <fmt/format.h>

#include <GLFW/glfw3.h>
#include <cctype>

namespace kvreplay::viewer {
namespace {

const char* fixed_name(int key) {
  switch (key) {
    case GLFW_KEY_LEFT:
      return "Left";
    case GLFW_KEY_RIGHT:
      return "Right";
    case GLFW_KEY_UP:
      return "Up";
    case GLFW_KEY_DOWN:
      return "Down";
    case GLFW_KEY_ESCAPE:
      return "Escape";
    case GLFW_KEY_ENTER:
    case GLFW_KEY_KP_ENTER:
      return "Enter";
    case GLFW_KEY_TAB:
      return "Tab";
    case GLFW_KEY_SPACE:
      return "Space";
    case GLFW_KEY_BACKSPACE:
      return "Backspace";
    case GLFW_KEY_DELETE:
      return "Delete";
    case GLFW_KEY_INSERT:
      return "Insert";
    case GLFW_KEY_HOME:
      return "Home";
    case GLFW_KEY_END:
      return "End";
    case GLFW_KEY_PAGE_UP:
      return "PageUp";
    case GLFW_KEY_PAGE_DOWN:
      return "PageDown";
    default:
      return nullptr;
  }
}

/// What the key types without modifiers, in capitals; 0 where that is not ASCII.
char plain_sign(int key, int scancode) {
  const char* name = glfwGetKeyName(key, scancode);
  if (name != nullptr && name[0] > ' ' && name[0] < 127 && name[1] == '\0')
    return static_cast<char>(std::toupper(static_cast<unsigned char>(name[0])));
  // Other scripts: the place on the keyboard counts.
  if ((key >= GLFW_KEY_A && key <= GLFW_KEY_Z) || (key >= GLFW_KEY_0 && key <= GLFW_KEY_9))
    return static_cast<char>(key);
  return 0;
}

}  // namespace

Modifiers modifiers_of(int mods) {
  // Where Super is what others call Control (macOS), it counts as such.
  return {(mods & (GLFW_MOD_CONTROL | GLFW_MOD_SUPER)) != 0, (mods & GLFW_MOD_SHIFT) != 0,
          (mods & GLFW_MOD_ALT) != 0};
}

Shortcut shortcut_of(int key, int scancode, int mods) {
  const Modifiers held = modifiers_of(mods);
  const Shortcut with{.key = {}, .control = held.control, .shift = held.shift, .alt = held.alt};
  Shortcut shortcut = with;
  if (const char* name = fixed_name(key); name != nullptr) {
    shortcut.key = name;
    return shortcut;
  }
  if (key >= GLFW_KEY_F1 && key <= GLFW_KEY_F25) {
    shortcut.key = fmt::format("F{}", key - GLFW_KEY_F1 + 1);
    return shortcut;
  }
  if (key == GLFW_KEY_UNKNOWN) return {};
  const char sign = plain_sign(key, scancode);
  if (sign >= 'A' && sign <= 'Z') {
    shortcut.key = std::string(1, sign);
    return shortcut;
  }
  if (sign == 0 || (!held.control && !held.alt)) return {};
  // No character follows while control is held. Zooming in is on the key of "=" on many keyboards.
  shortcut.key = std::string(1, sign == '=' ? '+' : sign);
  if (sign == '=') shortcut.shift = false;
  return shortcut;
}

Shortcut shortcut_of_character(unsigned code_point) {
  if (code_point <= ' ' || code_point >= 127 || std::isalpha(static_cast<int>(code_point)) != 0) return {};
  return {.key = std::string(1, static_cast<char>(code_point))};
}

}  // namespace kvreplay::viewer
