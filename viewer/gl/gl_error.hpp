#pragma once

#include <string_view>

namespace kvreplay::viewer {

/// Throws InputError where OpenGL has reported an error since the last check: "OpenGL: <what>:
/// GL_OUT_OF_MEMORY". Needs a current context.
void check_gl(std::string_view what);

/// Throws InputError unless the current context offers OpenGL 3.3.
void check_gl_version();

}  // namespace kvreplay::viewer
