#include "viewer/gl/headless_host.hpp"

#include "data/error.hpp"
#include "viewer/gl/gl_object.hpp"

#include <fmt/format.h>

#include <EGL/egl.h>
#include <EGL/eglext.h>
#include <array>
#include <cmath>

namespace kvreplay::viewer {
namespace {

[[noreturn]] void fail_at(const char* step) {
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
    if (made == EGL_NO_DISPLAY) fail_at("eglGetPlatformDisplay");
    if (eglInitialize(made, nullptr, nullptr) == EGL_FALSE) fail_at("eglInitialize");
    return made;
  }();
  return shared;
}

float checked_scale(float scale) {
  if (!(scale >= 0.25F && scale <= 8)) throw InputError("the scale", "0.25 to 8", fmt::format("{}", scale));
  return scale;
}

}  // namespace

HeadlessContext::HeadlessContext() {
  display();
  if (eglBindAPI(EGL_OPENGL_API) == EGL_FALSE) fail_at("eglBindAPI");
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
  if (context_ == EGL_NO_CONTEXT) fail_at("eglCreateContext");
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
    fail_at("eglMakeCurrent");
}

HeadlessHost::HeadlessHost(Client& client, int width, int height, float scale)
    : client_(&client), buffer_(width, height), scale_(checked_scale(scale)) {
  ImGuiIO& io = ImGui::GetIO();
  for (int key = 0; key < ImGuiKey_COUNT; ++key) io.KeyMap[key] = key;
  io.ConfigInputTextCursorBlink = false;  // pictures must not depend on when they are taken
}

HeadlessHost::~HeadlessHost() {
  try {
    context_.make_current();
  } catch (const InputError&) {
    return;  // what the context held goes with it
  }
  ui_.make_current();
  client_->closing();
}

void HeadlessHost::frame(float seconds) {
  context_.make_current();
  ui_.make_current();
  if (told_scale_ != scale_) {
    told_scale_ = scale_;
    client_->scale(scale_);
  }
  ui_.set_text(client_->text_points(), scale_);
  ImGuiIO& io = ImGui::GetIO();
  io.DisplaySize = {static_cast<float>(width()), static_cast<float>(height())};
  io.DeltaTime = seconds;
  // What has not been drawn yet cannot be hit.
  if (drawn_) input_.feed(*client_);
  drawn_ = true;
  ui_.new_frame();
  client_->frame();
  ui_.end_frame();
  painted_ = false;
  client_->drawn(width(), height());
  // Nothing swaps buffers here: a renderer in software would queue dozens of frames, and wait for all of them
  // at once some time.
  glFinish();
}

void HeadlessHost::paint() const {
  if (painted_) return;
  context_.make_current();
  ui_.make_current();
  buffer_.bind();
  ui_.paint(width(), height());
  glFinish();
  painted_ = true;
}

std::vector<Rgb> HeadlessHost::pixels() const {
  paint();
  context_.make_current();
  return buffer_.pixels(FirstRow::last);
}

}  // namespace kvreplay::viewer
