#include "viewer/gl/headless_context.hpp"

#include "data/error.hpp"
#include "viewer/gl/gl_error.hpp"

#include <fmt/format.h>

#include <EGL/egl.h>
#include <EGL/eglext.h>
#include <array>

namespace kvreplay::viewer {
namespace {

[[noreturn]] void fail(const char* step) {
  throw InputError(
      fmt::format("drawing without a display: expected EGL with OpenGL 3.3 core, found {} failed "
                  "with EGL error {:#x}",
                  step, eglGetError()));
}

/// EGL gives every caller the same display, whose end would be the end for all of them; and drivers that are
/// unloaded leave memory behind. So it lasts as long as the process.
EGLDisplay display() {
  static const EGLDisplay shared = [] {
    EGLDisplay made = eglGetPlatformDisplay(EGL_PLATFORM_SURFACELESS_MESA, EGL_DEFAULT_DISPLAY, nullptr);
    if (made == EGL_NO_DISPLAY) fail("eglGetPlatformDisplay");
    if (eglInitialize(made, nullptr, nullptr) == EGL_FALSE) fail("eglInitialize");
    return made;
  }();
  return shared;
}

}  // namespace

HeadlessContext::HeadlessContext() {
  display();
  if (eglBindAPI(EGL_OPENGL_API) == EGL_FALSE) fail("eglBindAPI");
  constexpr std::array config_wanted = {EGL_SURFACE_TYPE, EGL_PBUFFER_BIT, EGL_RENDERABLE_TYPE,
                                        EGL_OPENGL_BIT, EGL_NONE};
  EGLConfig config = nullptr;
  EGLint configs = 0;
  // A context that draws into framebuffers only needs no particular one, and some drivers have none to offer.
  if (eglChooseConfig(display(), config_wanted.data(), &config, 1, &configs) == EGL_FALSE || configs < 1)
    config = EGL_NO_CONFIG_KHR;
  constexpr std::array wanted = {EGL_CONTEXT_MAJOR_VERSION,
                                 3,
                                 EGL_CONTEXT_MINOR_VERSION,
                                 3,
                                 EGL_CONTEXT_OPENGL_PROFILE_MASK,
                                 EGL_CONTEXT_OPENGL_CORE_PROFILE_BIT,
                                 EGL_NONE};
  context_ = eglCreateContext(display(), config, EGL_NO_CONTEXT, wanted.data());
  if (context_ == EGL_NO_CONTEXT) fail("eglCreateContext");
  try {
    make_current();
    check_gl_version();
  } catch (...) {
    eglMakeCurrent(display(), EGL_NO_SURFACE, EGL_NO_SURFACE, EGL_NO_CONTEXT);
    eglDestroyContext(display(), context_);
    throw;
  }
}

HeadlessContext::~HeadlessContext() {
  if (eglGetCurrentContext() == context_)
    eglMakeCurrent(display(), EGL_NO_SURFACE, EGL_NO_SURFACE, EGL_NO_CONTEXT);
  eglDestroyContext(display(), context_);
}

void HeadlessContext::make_current() const {
  if (eglMakeCurrent(display(), EGL_NO_SURFACE, EGL_NO_SURFACE, context_) == EGL_FALSE)
    fail("eglMakeCurrent");
}

}  // namespace kvreplay::viewer
