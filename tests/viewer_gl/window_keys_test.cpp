#include "tests/support/catch.hpp"
#include "viewer/gl/window_host.hpp"

#include <GLFW/glfw3.h>

namespace kvreplay::viewer {
namespace {

TEST_CASE("keys: GLFW's keys have the table's names", "[viewer][gl]") {
  // Without GLFW started there is no keyboard layout, and the place of a key counts.
  CHECK(shortcut_of(GLFW_KEY_N, 0, 0) == Shortcut{"N"});
  CHECK(shortcut_of(GLFW_KEY_N, 0, GLFW_MOD_SHIFT) == Shortcut{.key = "N", .shift = true});
  CHECK(shortcut_of(GLFW_KEY_P, 0, GLFW_MOD_CONTROL | GLFW_MOD_SHIFT) ==
        Shortcut{.key = "P", .control = true, .shift = true});
  CHECK(shortcut_of(GLFW_KEY_Q, 0, GLFW_MOD_SUPER) == Shortcut{.key = "Q", .control = true});
  CHECK(shortcut_of(GLFW_KEY_LEFT, 0, GLFW_MOD_ALT) == Shortcut{.key = "Left", .alt = true});
  CHECK(shortcut_of(GLFW_KEY_KP_ENTER, 0, 0) == Shortcut{"Enter"});
  CHECK(shortcut_of(GLFW_KEY_F1, 0, 0) == Shortcut{"F1"});
  CHECK(shortcut_of(GLFW_KEY_F12, 0, 0) == Shortcut{"F12"});
  CHECK(shortcut_of(GLFW_KEY_7, 0, GLFW_MOD_CONTROL) == Shortcut{.key = "7", .control = true});
  for (const char* name : {"Escape", "Tab", "Space", "Up", "Down", "Right", "Home", "End", "Delete"}) {
    INFO(name);
    CHECK(toolkit_key(name) >= 0);
  }
}

TEST_CASE("keys: signs come as typed, whatever the keyboard takes for them", "[viewer][gl]") {
  CHECK(shortcut_of(GLFW_KEY_SLASH, 0, GLFW_MOD_SHIFT).empty());
  CHECK(shortcut_of(GLFW_KEY_7, 0, 0).empty());
  CHECK(shortcut_of_character('?') == Shortcut{"?"});
  CHECK(shortcut_of_character('7') == Shortcut{"7"});
  CHECK(shortcut_of_character('+') == Shortcut{"+"});
  for (const unsigned none : {unsigned{'a'}, unsigned{'Z'}, unsigned{' '}, 0U, 127U, 0xE9U, 0x1F600U})
    CHECK(shortcut_of_character(none).empty());
  CHECK(shortcut_of(GLFW_KEY_LEFT_SHIFT, 0, GLFW_MOD_SHIFT).empty());
  CHECK(shortcut_of(GLFW_KEY_UNKNOWN, 0, GLFW_MOD_CONTROL).empty());
}

}  // namespace
}  // namespace kvreplay::viewer
