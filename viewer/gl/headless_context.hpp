#pragma once

namespace kvreplay::viewer {

/// An OpenGL 3.3 core context without any display (EGL on Mesa's surfaceless platform), current from its
/// making on. It has no default framebuffer: draw into one of your own.
class HeadlessContext {
 public:
  /// Throws InputError where there is no such context to be had.
  HeadlessContext();
  ~HeadlessContext();
  HeadlessContext(const HeadlessContext&) = delete;
  HeadlessContext& operator=(const HeadlessContext&) = delete;

  void make_current() const;

 private:
  void* context_ = nullptr;
};

}  // namespace kvreplay::viewer
