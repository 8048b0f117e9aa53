#include "viewer/gl/shader.hpp"

#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace kvreplay::viewer {
namespace {

/// The compiler's words on one line.
template <class Lengths, class Log>
std::string log_of(GLuint id, const Lengths& lengths, const Log& read) {
  GLint length = 0;
  lengths(id, GL_INFO_LOG_LENGTH, &length);
  std::string text(static_cast<std::size_t>(std::max(length, 1)), '\0');
  GLsizei written = 0;
  read(id, static_cast<GLsizei>(text.size()), &written, text.data());
  text.resize(written);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

struct Shader {
  explicit Shader(GLenum kind) : id(glCreateShader(kind)) {}
  Shader(const Shader&) = delete;
  Shader& operator=(const Shader&) = delete;
  ~Shader() { glDeleteShader(id); }
  GLuint id;
};

void compile(const Shader& shader, const std::string& source, const char* kind) {
  const char* text = source.c_str();
  glShaderSource(shader.id, 1, &text, nullptr);
  glCompileShader(shader.id);
  GLint fine = 0;
  glGetShaderiv(shader.id, GL_COMPILE_STATUS, &fine);
  if (fine == 0)
    throw InputError(fmt::format("OpenGL: the {} shader does not compile: {}", kind,
                                 log_of(shader.id, glGetShaderiv, glGetShaderInfoLog)));
}

}  // namespace

GlProgram link_program(const std::string& vertex_source, const std::string& fragment_source) {
  const Shader vertex(GL_VERTEX_SHADER), fragment(GL_FRAGMENT_SHADER);
  compile(vertex, vertex_source, "vertex");
  compile(fragment, fragment_source, "fragment");
  GlProgram program;
  glAttachShader(program.id(), vertex.id);
  glAttachShader(program.id(), fragment.id);
  glLinkProgram(program.id());
  glDetachShader(program.id(), vertex.id);
  glDetachShader(program.id(), fragment.id);
  GLint fine = 0;
  glGetProgramiv(program.id(), GL_LINK_STATUS, &fine);
  if (fine == 0)
    throw InputError(fmt::format("OpenGL: the shaders do not link: {}",
                                 log_of(program.id(), glGetProgramiv, glGetProgramInfoLog)));
  return program;
}

}  // namespace kvreplay::viewer
