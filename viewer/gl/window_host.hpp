#pragma once

#include "viewer/gl/host.hpp"

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

struct GLFWwindow;

namespace kvreplay::viewer {

class UiContext;

struct WindowSize {
  int width = 1280, height = 800;  ///< points
};

/// Shows a client in a window (GLFW, OpenGL 3.3 core). Main thread only; one at a time.
class WindowHost {
 public:
  /// Throws InputError where there is no display or no OpenGL 3.3.
  explicit WindowHost(Client& client, WindowSize size = {});
  ~WindowHost();
  WindowHost(const WindowHost&) = delete;
  WindowHost& operator=(const WindowHost&) = delete;

  /// Until the window is closed or the client quits. Sleeps while nothing happens.
  void run();
  /// Waits for input where nothing is to be drawn, then draws one frame; false once the window is closed or
  /// the client has quit.
  bool step();

  /// Asks for a frame; from any thread, also while the window sleeps. Without a window it does nothing.
  static void wake();

  WindowSize size() const;
  const UiContext& ui() const { return *ui_; }

 private:
  struct Callbacks;
  void make_window(WindowSize size);
  void down(int key, const Shortcut& shortcut);
  void wait();
  void draw();
  void follow_scale();

  Client* client_;
  GLFWwindow* window_ = nullptr;
  std::unique_ptr<UiContext> ui_;
  InputQueue input_;
  std::vector<std::filesystem::path> dropped_;
  std::vector<std::pair<int, Shortcut>> held_;  ///< physical keys that are down, and what they stood for
  int last_key_ = -1;
  int frames_due_ = 0;
  float scale_ = 0;  ///< as the client was told
  std::string title_;
};

/// GLFW's modifier bits.
Modifiers modifiers_of(int mods);

/// Shortcut of a press of GLFW's `key`, if the key alone determines it: letters by the keyboard's layout,
/// named keys, and with control or alt every character. Empty if only the typed character determines it.
Shortcut shortcut_of(int key, int scancode, int mods);

/// Shortcut of a typed character; empty for letters, the space and characters beyond ASCII.
Shortcut shortcut_of_character(unsigned code_point);

}  // namespace kvreplay::viewer
