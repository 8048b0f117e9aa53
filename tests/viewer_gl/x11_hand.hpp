#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

namespace kvreplay::test {

/// A hand at the keyboard and the mouse of the display that DISPLAY names: its events come by the X server's
/// XTEST extension as a device's would, a file's drop by the XDND protocol as a file manager's would.
class X11Hand {
 public:
  /// Of the one window of this class; fails the test where there is none. Coordinates are its pixels.
  explicit X11Hand(const std::string& window_class);
  ~X11Hand();
  X11Hand(const X11Hand&) = delete;
  X11Hand& operator=(const X11Hand&) = delete;

  void move(float x, float y);
  void button(unsigned button, bool down);  ///< X11's: 1 left, 4 wheel away, 5 wheel towards the user
  /// A key by its keysym's name ("n", "Return", "Control_L").
  void key(const char* name, bool down);
  void tap(const char* name);
  /// Calls `frame` until the window has taken the file; false where it did not within many frames.
  bool drop(const std::filesystem::path& file, const std::function<void()>& frame);

 private:
  struct Connection;
  std::unique_ptr<Connection> x_;
};

}  // namespace kvreplay::test
