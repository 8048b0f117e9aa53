#include "viewer/gl/canvas.hpp"

#include "viewer/gl/gl_object.hpp"

#include <cmath>

namespace kvreplay::viewer {
namespace {

int pixels_of(float points, float scale) { return static_cast<int>(std::lround(points * scale)); }

}  // namespace

Canvas::Canvas(float width, float height, float scale)
    : scale_(scale), buffer_(pixels_of(width, scale), pixels_of(height, scale)) {
  ImGui::SetCurrentContext(window_);  // a new toolkit is the current one
}

void Canvas::frame(float text_points, const std::function<bool()>& draw) {
  GLint drawn_to = 0, read_from = 0;
  glGetIntegerv(GL_DRAW_FRAMEBUFFER_BINDING, &drawn_to);
  glGetIntegerv(GL_READ_FRAMEBUFFER_BINDING, &read_from);
  ui_.make_current();
  ui_.set_text(text_points, scale_);
  ImGuiIO& io = ImGui::GetIO();
  io.DisplaySize = {static_cast<float>(width()), static_cast<float>(height())};
  io.DeltaTime = 1.0F / 60;
  ui_.new_frame();
  const bool wanted = draw();
  ui_.end_frame();
  if (wanted) {
    buffer_.bind();
    ui_.paint(width(), height());
  }
  glBindFramebuffer(GL_DRAW_FRAMEBUFFER, static_cast<GLuint>(drawn_to));
  glBindFramebuffer(GL_READ_FRAMEBUFFER, static_cast<GLuint>(read_from));
  ImGui::SetCurrentContext(window_);
}

}  // namespace kvreplay::viewer
