#pragma once

#include "viewer/gl/frame_buffer.hpp"
#include "viewer/gl/headless_context.hpp"
#include "viewer/gl/host.hpp"
#include "viewer/gl/ui_context.hpp"

namespace kvreplay::viewer {

/// Shows a client without any display: for pictures in files, for tests and for measuring.
class HeadlessHost {
 public:
  /// `width` x `height` pixels, `scale` of them a point. Throws InputError where there is no OpenGL 3.3.
  HeadlessHost(Client& client, int width, int height, float scale = 1);
  ~HeadlessHost();
  HeadlessHost(const HeadlessHost&) = delete;
  HeadlessHost& operator=(const HeadlessHost&) = delete;

  /// One frame, `seconds` after the last one. Its picture is painted when it is asked for.
  void frame(float seconds = 1.0F / 60);
  /// The last frame's picture, for those who time it: pixels() paints what is not painted yet.
  void paint() const;

  /// The last frame: [height, width], top first.
  std::vector<Rgb> pixels() const;
  int width() const { return buffer_.width(); }
  int height() const { return buffer_.height(); }
  const UiContext& ui() const { return ui_; }
  bool quit() const { return client_->quit(); }

 protected:
  Client* client_;
  HeadlessContext context_;
  FrameBuffer buffer_;
  UiContext ui_;
  InputQueue input_;
  float scale_ = 1, told_scale_ = 0;
  bool drawn_ = false;
  mutable bool painted_ = true;  // false: the last frame is but described
};

}  // namespace kvreplay::viewer
