#pragma once

#include <GL/gl.h>
#include <GL/glext.h>
#include <string_view>
#include <utility>

// OpenGL's names as owning, movable values. Each needs the context that was current when it was made.

namespace kvreplay::viewer {

template <void (*Make)(GLuint*), void (*Free)(GLuint)>
class GlObject {
 public:
  GlObject() { Make(&id_); }
  GlObject(GlObject&& other) noexcept : id_(std::exchange(other.id_, 0)) {}
  GlObject& operator=(GlObject&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  GlObject(const GlObject&) = delete;
  GlObject& operator=(const GlObject&) = delete;
  ~GlObject() {
    if (id_ != 0) Free(id_);
  }
  GLuint id() const { return id_; }

 private:
  GLuint id_ = 0;
};

namespace gl {
inline void make_texture(GLuint* id) { glGenTextures(1, id); }
inline void free_texture(GLuint id) { glDeleteTextures(1, &id); }
inline void make_frame_buffer(GLuint* id) { glGenFramebuffers(1, id); }
inline void free_frame_buffer(GLuint id) { glDeleteFramebuffers(1, &id); }
inline void make_vertex_array(GLuint* id) { glGenVertexArrays(1, id); }
inline void free_vertex_array(GLuint id) { glDeleteVertexArrays(1, &id); }
inline void make_buffer(GLuint* id) { glGenBuffers(1, id); }
inline void free_buffer(GLuint id) { glDeleteBuffers(1, &id); }
inline void make_program(GLuint* id) { *id = glCreateProgram(); }
inline void free_program(GLuint id) { glDeleteProgram(id); }
}  // namespace gl

using GlTexture = GlObject<gl::make_texture, gl::free_texture>;
using GlFrameBuffer = GlObject<gl::make_frame_buffer, gl::free_frame_buffer>;
using GlBuffer = GlObject<gl::make_buffer, gl::free_buffer>;
using GlVertexArray = GlObject<gl::make_vertex_array, gl::free_vertex_array>;
using GlProgram = GlObject<gl::make_program, gl::free_program>;

/// Throws InputError where OpenGL has reported an error since the last check: "OpenGL: <what>:
/// GL_OUT_OF_MEMORY". Needs a current context.
void check_gl(std::string_view what);

/// Throws InputError unless the current context offers OpenGL 3.3.
void check_gl_version();

}  // namespace kvreplay::viewer
