#include "viewer/gl/window_keys.hpp"

#include <fmt/format.h>

#include <GLFW/glfw3.h>
#include <cctype>
#include <utility>

namespace kvreplay::viewer {
namespace {

constexpr std::pair<int, const char*> kFixedNames[] = {
    {GLFW_KEY_LEFT, "Left"},           {GLFW_KEY_RIGHT, "Right"},   {GLFW_KEY_UP, "Up"},
    {GLFW_KEY_DOWN, "Down"},           {GLFW_KEY_ESCAPE, "Escape"}, {GLFW_KEY_ENTER, "Enter"},
    {GLFW_KEY_KP_ENTER, "Enter"},      {GLFW_KEY_TAB, "Tab"},       {GLFW_KEY_SPACE, "Space"},
    {GLFW_KEY_BACKSPACE, "Backspace"}, {GLFW_KEY_DELETE, "Delete"}, {GLFW_KEY_INSERT, "Insert"},
    {GLFW_KEY_HOME, "Home"},           {GLFW_KEY_END, "End"},       {GLFW_KEY_PAGE_UP, "PageUp"},
    {GLFW_KEY_PAGE_DOWN, "PageDown"}};

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
  Shortcut shortcut{.key = {}, .control = held.control, .shift = held.shift, .alt = held.alt};
  for (const auto& [fixed, name] : kFixedNames)
    if (fixed == key) {
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
