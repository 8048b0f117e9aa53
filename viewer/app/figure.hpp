#pragma once

#include "viewer/gl/frame_buffer.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/model/panel_kind.hpp"

#include <filesystem>
#include <functional>

namespace kvreplay::viewer {

/// A panel's figure on its way into a file: drawn beside the window's frames, with a toolkit and a size of
/// its own, until all of it is computed. Lives and dies with the window's OpenGL context current.
class Figure {
 public:
  /// Frames without anything new, after which a picture is taken.
  static constexpr int kQuietFrames = 3;

  /// `width` x `height` points, `scale` pixels each. Throws InputError for sizes that OpenGL cannot have.
  Figure(PanelKind panel, std::filesystem::path path, float width, float height, float scale);

  PanelKind panel() const { return panel_; }
  const std::filesystem::path& path() const { return path_; }
  float scale() const { return scale_; }

  /// Draws one frame: `draw` between the toolkit's NewFrame() and Render(); it says whether all of it is
  /// there. The window's toolkit and framebuffer are the current ones again afterwards.
  void frame(float text_points, const std::function<bool()>& draw);
  /// Whether another frame is due at once: nothing has to be waited for.
  bool settling() const { return quiet_ > 0 || !drawn_; }
  /// Whether the last frames were whole: the last of them has been painted.
  bool done() const;
  void write() const;  ///< when done()

 private:
  PanelKind panel_;
  std::filesystem::path path_;
  float scale_;
  ImGuiContext* window_ = ImGui::GetCurrentContext();
  FrameBuffer buffer_;
  UiContext ui_;
  int quiet_ = 0;
  bool drawn_ = false;
};

}  // namespace kvreplay::viewer
