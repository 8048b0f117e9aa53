#pragma once

#include "viewer/model/actions.hpp"

#include <filesystem>
#include <limits>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// What a host (window_host.hpp, headless_host.hpp) shows. Everything is called on the host's thread with the
/// toolkit's and OpenGL's contexts current; lengths are pixels of the host's framebuffer throughout.
class Client {
 public:
  virtual ~Client() = default;

  /// Draws one frame with the toolkit, between its NewFrame() and Render().
  virtual void frame() = 0;
  /// The frame is finished. In a window it lies in the framebuffer that is bound for reading:
  /// read_pixels(width, height, FirstRow::last) gives its pixels.
  virtual void drawn(int /*width*/, int /*height*/) {}

  /// A key went down (again, while it is held) or up; between frames, in the order of typing, also while a
  /// text field has the keyboard (ImGui::GetIO().WantTextInput). Signs that are no letter ("?", "+", "7")
  /// come as typed, without the shift that the keyboard may take for them.
  virtual void key(const Shortcut& /*shortcut*/, bool /*down*/) {}
  virtual void dropped(const std::vector<std::filesystem::path>& /*paths*/) {}

  /// The last call: what the client holds of OpenGL must go now, while the context is there.
  virtual void closing() {}

  /// Asked after each frame.
  virtual bool quit() const { return false; }
  /// Whether the picture changes without input, so that another frame is due at once.
  virtual bool needs_frame() const { return false; }
  /// Seconds after which the picture changes without input; infinite where it does not.
  virtual double changes_in() const { return std::numeric_limits<double>::infinity(); }
  /// Of the window.
  virtual std::string title() const { return "kvreplay"; }
  /// Size of the text, in points of 1/scale pixels; asked before each frame.
  virtual float text_points() const { return 13; }
  /// Pixels per point: before the first frame and whenever the window comes to another display.
  virtual void scale(float /*pixels_per_point*/) {}
};

}  // namespace kvreplay::viewer
