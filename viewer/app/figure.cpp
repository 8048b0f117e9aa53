#include "viewer/app/figure.hpp"

#include "viewer/gl/picture.hpp"

#include <cmath>
#include <utility>

namespace kvreplay::viewer {
namespace {

int pixels(float points, float scale) { return static_cast<int>(std::lround(points * scale)); }

}  // namespace

Figure::Figure(PanelKind panel, std::filesystem::path path, float width, float height, float scale)
    : panel_(panel),
      path_(std::move(path)),
      scale_(scale),
      buffer_(pixels(width, scale), pixels(height, scale)) {
  ImGui::SetCurrentContext(window_);  // a new toolkit is the current one
}

void Figure::frame(float text_points, const std::function<bool()>& draw) {
  GLint drawn_to = 0, read_from = 0;
  glGetIntegerv(GL_DRAW_FRAMEBUFFER_BINDING, &drawn_to);
  glGetIntegerv(GL_READ_FRAMEBUFFER_BINDING, &read_from);
  ui_.make_current();
  ui_.set_text(text_points, scale_);
  ImGuiIO& io = ImGui::GetIO();
  io.DisplaySize = {static_cast<float>(buffer_.width()), static_cast<float>(buffer_.height())};
  io.DeltaTime = 1.0F / 60;
  ui_.new_frame();
  quiet_ = draw() ? quiet_ + 1 : 0;
  drawn_ = true;
  ui_.end_frame();
  if (done()) {
    buffer_.bind();
    ui_.paint(buffer_.width(), buffer_.height());
  }
  glBindFramebuffer(GL_DRAW_FRAMEBUFFER, static_cast<GLuint>(drawn_to));
  glBindFramebuffer(GL_READ_FRAMEBUFFER, static_cast<GLuint>(read_from));
  ImGui::SetCurrentContext(window_);
}

bool Figure::done() const { return quiet_ >= kQuietFrames; }

void Figure::write() const {
  write_picture(path_, buffer_.pixels(FirstRow::last), buffer_.width(), buffer_.height());
}

}  // namespace kvreplay::viewer
