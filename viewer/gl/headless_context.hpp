#pragma once

namespace kvreplay::viewer {

/// Source of OpenGL without a display: Mesa's surfaceless platform, or a device by its EGL, the only one that
/// NVIDIA's driver provides.
enum class EglPlatform { first_that_works, surfaceless, device };

/// An OpenGL 3.3 core context without any display, current from its making on. It has no default framebuffer:
/// draw into one of your own.
class HeadlessContext {
 public:
  /// Throws InputError where there is no such context to be had; it says what was tried.
  explicit HeadlessContext(EglPlatform platform = EglPlatform::first_that_works);
  ~HeadlessContext();
  HeadlessContext(const HeadlessContext&) = delete;
  HeadlessContext& operator=(const HeadlessContext&) = delete;

  void make_current() const;

 private:
  void* display_;
  void* context_;
};

}  // namespace kvreplay::viewer
