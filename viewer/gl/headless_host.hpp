#pragma once

#include "viewer/gl/frame_buffer.hpp"
#include "viewer/gl/headless_context.hpp"
#include "viewer/gl/input_queue.hpp"
#include "viewer/gl/ui_context.hpp"

#include <string_view>

namespace kvreplay::viewer {

/// Shows a client without any display: for pictures in files, for tests and for measuring. Input is scripted:
/// it is queued and reaches the client with the following frames. The same script gives the same pixels.
class HeadlessHost {
 public:
  /// `width` x `height` pixels, `scale` of them a point. Throws InputError where there is no OpenGL 3.3.
  HeadlessHost(Client& client, int width, int height, float scale = 1);
  ~HeadlessHost();
  HeadlessHost(const HeadlessHost&) = delete;
  HeadlessHost& operator=(const HeadlessHost&) = delete;

  /// One frame, `seconds` after the last one. Its picture is painted when it is asked for.
  void frame(float seconds = 1.0F / 60);
  /// Frames until all input has been told, and `after` more frames, so that hovering and what opens settles.
  void settle(int after = 3);
  void resize(int width, int height, float scale);
  /// The last frame's picture, for those who time it: pixels() paints what is not painted yet.
  void paint() const;

  /// Of the last frame: [height, width], top first.
  std::vector<Rgb> pixels() const;
  int width() const { return buffer_.width(); }
  int height() const { return buffer_.height(); }
  const UiContext& ui() const { return ui_; }
  bool quit() const { return client_->quit(); }

  void move_mouse(float x, float y) { input_.move(x, y); }
  void press_button(int button = 0) { input_.button(button, true); }
  void release_button(int button = 0) { input_.button(button, false); }
  void click(float x, float y, int button = 0);
  /// In eight steps, each with a frame of its own.
  void drag(float from_x, float from_y, float to_x, float to_y, int button = 0);
  void wheel(float dx, float dy) { input_.wheel(dx, dy); }
  void hold(Modifiers modifiers);  ///< until the next hold()
  /// As a keyboard would: with its modifiers and the character that it types.
  void press_key(const Shortcut& shortcut);
  void release_key(const Shortcut& shortcut);
  void tap_key(const Shortcut& shortcut);
  void type(std::string_view utf8);
  void drop(const std::vector<std::filesystem::path>& paths) { client_->dropped(paths); }

 private:
  Client* client_;
  HeadlessContext context_;
  FrameBuffer buffer_;
  UiContext ui_;
  InputQueue input_;
  Modifiers held_;
  float scale_ = 1, told_scale_ = 0;
  bool drawn_ = false;
  mutable bool painted_ = true;  // false: the last frame is but described
};

}  // namespace kvreplay::viewer
