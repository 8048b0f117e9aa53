#include "viewer/gl/headless_context.hpp"

#include "data/error.hpp"
#include "viewer/gl/gl_object.hpp"

#include <fmt/format.h>

#include <EGL/egl.h>
#include <EGL/eglext.h>
#include <array>
#include <cstddef>
#include <string>
#include <vector>

namespace kvreplay::viewer {
namespace {

[[noreturn]] void fail_at(const char* step) {
  throw InputError(fmt::format("{} failed with EGL error {:#x}", step, eglGetError()));
}

struct Place {
  std::string name;
  EGLenum platform;
  void* native;
};

std::vector<Place> device_places() {
  const auto query = reinterpret_cast<PFNEGLQUERYDEVICESEXTPROC>(eglGetProcAddress("eglQueryDevicesEXT"));
  EGLint count = 0;
  if (query == nullptr || query(0, nullptr, &count) == EGL_FALSE) return {};
  std::vector<EGLDeviceEXT> devices(static_cast<std::size_t>(count));
  if (query(count, devices.data(), &count) == EGL_FALSE) return {};
  devices.resize(static_cast<std::size_t>(count));
  std::vector<Place> places;
  for (EGLDeviceEXT device : devices)
    places.push_back({fmt::format("EGL device {}", places.size()), EGL_PLATFORM_DEVICE_EXT, device});
  return places;
}

std::vector<Place> places_of(EglPlatform platform) {
  std::vector<Place> places;
  if (platform != EglPlatform::device)
    places.push_back({"surfaceless EGL", EGL_PLATFORM_SURFACELESS_MESA, EGL_DEFAULT_DISPLAY});
  if (platform != EglPlatform::surfaceless)
    for (Place& device : device_places()) places.push_back(std::move(device));
  return places;
}

void destroy(EGLDisplay display, EGLContext context) {
  if (eglGetCurrentContext() == context)
    eglMakeCurrent(display, EGL_NO_SURFACE, EGL_NO_SURFACE, EGL_NO_CONTEXT);
  eglDestroyContext(display, context);
}

void make_current(EGLDisplay display, EGLContext context) {
  if (eglMakeCurrent(display, EGL_NO_SURFACE, EGL_NO_SURFACE, context) == EGL_FALSE)
    fail_at("eglMakeCurrent");
}

/// Current, with OpenGL 3.3.
EGLContext make_context(EGLDisplay display) {
  if (eglBindAPI(EGL_OPENGL_API) == EGL_FALSE) fail_at("eglBindAPI");
  constexpr std::array config_wanted = {EGL_SURFACE_TYPE, EGL_PBUFFER_BIT, EGL_RENDERABLE_TYPE,
                                        EGL_OPENGL_BIT, EGL_NONE};
  EGLConfig config = nullptr;
  EGLint configs = 0;
  // A context that draws into framebuffers only needs no particular one, and some drivers have none to offer.
  if (eglChooseConfig(display, config_wanted.data(), &config, 1, &configs) == EGL_FALSE || configs < 1)
    config = EGL_NO_CONFIG_KHR;
  constexpr std::array wanted = {EGL_CONTEXT_MAJOR_VERSION,
                                 3,
                                 EGL_CONTEXT_MINOR_VERSION,
                                 3,
                                 EGL_CONTEXT_OPENGL_PROFILE_MASK,
                                 EGL_CONTEXT_OPENGL_CORE_PROFILE_BIT,
                                 EGL_NONE};
  const EGLContext context = eglCreateContext(display, config, EGL_NO_CONTEXT, wanted.data());
  if (context == EGL_NO_CONTEXT) fail_at("eglCreateContext");
  try {
    make_current(display, context);
    check_gl_version();
  } catch (...) {
    destroy(display, context);
    throw;
  }
  return context;
}

EGLDisplay open_display(const Place& place) {
  const EGLDisplay display = eglGetPlatformDisplay(place.platform, place.native, nullptr);
  if (display == EGL_NO_DISPLAY) fail_at("eglGetPlatformDisplay");
  if (eglInitialize(display, nullptr, nullptr) == EGL_FALSE) fail_at("eglInitialize");
  return display;
}

EGLDisplay first_with_opengl(EglPlatform platform) {
  std::string tried;
  for (const Place& place : places_of(platform)) try {
      const EGLDisplay display = open_display(place);
      destroy(display, make_context(display));
      return display;
    } catch (const InputError& error) {
      tried += fmt::format("{}{}: {}", tried.empty() ? "" : "; ", place.name, error.what());
    }
  throw InputError("drawing without a display", "EGL with OpenGL 3.3 core",
                   fmt::format("none ({}); Debian has it in software in libegl1 and libgl1-mesa-dri",
                               tried.empty() ? "no EGL device" : tried));
}

/// EGL gives every caller the same display, whose end would be the end for all of them; and drivers that are
/// unloaded leave memory behind. So it lasts as long as the process.
EGLDisplay display_of(EglPlatform platform) {
  static std::array<EGLDisplay, 3> known{};
  EGLDisplay& display = known[static_cast<std::size_t>(platform)];
  if (display == EGL_NO_DISPLAY) display = first_with_opengl(platform);
  return display;
}

}  // namespace

HeadlessContext::HeadlessContext(EglPlatform platform)
    : display_(display_of(platform)), context_(make_context(display_)) {}

HeadlessContext::~HeadlessContext() { destroy(display_, context_); }

void HeadlessContext::make_current() const { viewer::make_current(display_, context_); }

}  // namespace kvreplay::viewer
