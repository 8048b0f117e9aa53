#include "viewer/gl/gl_object.hpp"

#include "data/error.hpp"

#include <fmt/format.h>

#include <GL/gl.h>
#include <GL/glext.h>
#include <string>
#include <utility>

namespace kvreplay::viewer {
namespace {

std::string name_of(GLenum error) {
  static constexpr std::pair<GLenum, const char*> names[] = {
      {GL_INVALID_ENUM, "GL_INVALID_ENUM"},
      {GL_INVALID_VALUE, "GL_INVALID_VALUE"},
      {GL_INVALID_OPERATION, "GL_INVALID_OPERATION"},
      {GL_OUT_OF_MEMORY, "GL_OUT_OF_MEMORY"},
      {GL_INVALID_FRAMEBUFFER_OPERATION, "GL_INVALID_FRAMEBUFFER_OPERATION"}};
  for (const auto& [known, name] : names)
    if (known == error) return name;
  return fmt::format("error {:#x}", error);
}

}  // namespace

void check_gl(std::string_view what) {
  const GLenum first = glGetError();
  if (first == GL_NO_ERROR) return;
  // Several may wait; without a context the call never ends in GL_NO_ERROR.
  for (int more = 0; more < 16 && glGetError() != GL_NO_ERROR; ++more) continue;
  throw InputError(fmt::format("OpenGL: {}: {}", what, name_of(first)));
}

void check_gl_version() {
  GLint major = 0, minor = 0;
  glGetIntegerv(GL_MAJOR_VERSION, &major);
  glGetIntegerv(GL_MINOR_VERSION, &minor);
  const auto* text = reinterpret_cast<const char*>(glGetString(GL_VERSION));
  if (major * 10 + minor < 33)
    throw InputError("the dashboard's graphics", "OpenGL 3.3", text == nullptr ? "none" : text);
}

}  // namespace kvreplay::viewer
