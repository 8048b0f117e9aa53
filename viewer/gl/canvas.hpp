#pragma once

#include "viewer/gl/frame_buffer.hpp"
#include "viewer/gl/ui_context.hpp"

#include <functional>
#include <imgui.h>
#include <vector>

namespace kvreplay::viewer {

/// A picture beside the window's, with a toolkit and a size of its own. Lives and dies with the window's
/// OpenGL context current.
class Canvas {
 public:
  /// `width` x `height` points, `scale` pixels each. Throws InputError for sizes that OpenGL cannot have.
  Canvas(float width, float height, float scale);

  float scale() const { return scale_; }
  int width() const { return buffer_.width(); }
  int height() const { return buffer_.height(); }

  /// From the next frame on.
  void set_height(int pixels) { buffer_.resize(buffer_.width(), pixels); }

  /// Draws one frame: `draw` between the toolkit's NewFrame() and Render(). It is painted where `draw` says
  /// so. The window's toolkit and framebuffer are the current ones again afterwards.
  void frame(float text_points, const std::function<bool()>& draw);
  /// What was painted last: [height, width], top first.
  std::vector<Rgb> pixels() const { return buffer_.pixels(FirstRow::last); }

 private:
  float scale_;
  ImGuiContext* window_ = ImGui::GetCurrentContext();
  FrameBuffer buffer_;
  UiContext ui_;
};

}  // namespace kvreplay::viewer
