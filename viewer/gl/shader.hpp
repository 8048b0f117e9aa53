#pragma once

#include "viewer/gl/gl_object.hpp"

#include <string>

namespace kvreplay::viewer {

/// A linked program. Throws InputError with the compiler's log, where a source does not compile or link.
GlProgram link_program(const std::string& vertex_source, const std::string& fragment_source);

}  // namespace kvreplay::viewer
