#pragma once

#include "viewer/gl/input_queue.hpp"

#include <string>

namespace kvreplay::viewer {

/// GLFW's modifier bits.
Modifiers modifiers_of(int mods);

/// What a press of GLFW's `key` means, where the key alone says it: letters as the keyboard's layout has
/// them, named keys, and with control or alt every sign. Empty where only the character tells that it types.
Shortcut shortcut_of(int key, int scancode, int mods);

/// What a typed character means as a key; empty for letters, the space and what is not ASCII.
Shortcut shortcut_of_character(unsigned code_point);

}  // namespace kvreplay::viewer
