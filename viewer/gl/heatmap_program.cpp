#include "data/error.hpp"
#include "viewer/gl/gl_object.hpp"
#include "viewer/gl/heatmap_renderer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace kvreplay::viewer {
namespace {

std::string with_constants(const std::string& source, ScaleKind kind) {
  return fmt::format(
             "#version 330 core\n#define KTILE_BITS {}\n#define KHATCH_WIDTH {}\n#define KFADE {:.9f}\n"
             "#define KCOLORS {}\n#define KIND {}\n",
             kTileBits, kHatchWidth, kFade, HeatmapProgram::kColors, static_cast<int>(kind)) +
         source;
}

float symlog(float value, float threshold) {
  return std::copysign(std::log(1.0F + std::abs(value) / threshold), value);
}

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

/// Throws InputError with the compiler's log, where a source does not compile or link.
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

}  // namespace

HeatmapProgram::HeatmapProgram() : HeatmapProgram(heatmap_fragment_source()) {}

HeatmapProgram::HeatmapProgram(const std::string& fragment_source) {
  for (const ScaleKind kind : kScaleKinds.all()) {
    by_kind_.push_back(
        link_program(with_constants(heatmap_vertex_source(), kind), with_constants(fragment_source, kind)));
    const GLuint program = by_kind_.back().id();
    glUseProgram(program);
    glUniform1i(glGetUniformLocation(program, "tiles"), unit_tiles);
    glUniform1i(glGetUniformLocation(program, "columns"), unit_columns);
    glUniform1i(glGetUniformLocation(program, "rows"), unit_rows);
    glUniform1i(glGetUniformLocation(program, "colors"), unit_colors);
  }
  glUseProgram(0);
  check_gl("the heatmaps' shader");
}

void HeatmapProgram::use(const HeatmapImage& image) const {
  const ValueScale& scale = image.scale;
  const GLuint program = by_kind_[static_cast<std::size_t>(scale.kind)].id();
  float start = 0, span = 1;
  if (scale.kind == ScaleKind::log) {
    span = std::log(scale.high / scale.low);
  } else if (scale.kind == ScaleKind::symlog) {
    start = symlog(scale.low, scale.threshold);
    span = symlog(scale.high, scale.threshold) - start;
  }
  glUseProgram(program);
  // A kind of scale need not have all of them: the compiler drops what it does not use.
  const auto at = [program](const char* name) { return glGetUniformLocation(program, name); };
  glUniform2f(at("size"), static_cast<float>(image.width), static_cast<float>(image.height));
  glUniform1f(at("low"), scale.low);
  glUniform1f(at("high"), scale.high);
  glUniform1f(at("threshold"), scale.threshold);
  glUniform1f(at("start"), start);
  glUniform1f(at("span"), span);
  glUniform1i(at("mark_beyond"), image.ink.mark_beyond ? 1 : 0);
  const auto set = [&](const char* name, Rgb color) {
    constexpr float most = 255;
    glUniform3f(at(name), static_cast<float>(color.r) / most, static_cast<float>(color.g) / most,
                static_cast<float>(color.b) / most);
  };
  set("outside", image.ink.outside);
  set("pending", image.ink.pending);
  set("hatch_a", image.ink.hatch_a);
  set("hatch_b", image.ink.hatch_b);
  set("under", image.ink.under);
  set("over", image.ink.over);
}

}  // namespace kvreplay::viewer
