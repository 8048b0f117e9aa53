#include "viewer/gl/gl_error.hpp"
#include "viewer/gl/heatmap_renderer.hpp"
#include "viewer/gl/heatmap_shader.hpp"
#include "viewer/gl/shader.hpp"

#include <fmt/format.h>

#include <cmath>

namespace kvreplay::viewer {
namespace {

constexpr ScaleKind kKinds[] = {ScaleKind::linear, ScaleKind::log, ScaleKind::symlog};

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

}  // namespace

HeatmapProgram::HeatmapProgram() : HeatmapProgram(heatmap_fragment_source()) {}

HeatmapProgram::HeatmapProgram(const std::string& fragment_source) {
  for (const ScaleKind kind : kKinds) {
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
