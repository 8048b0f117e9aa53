#pragma once

#include <string>

namespace kvreplay::viewer {

/// One triangle over the whole picture.
inline const std::string& heatmap_vertex_source() {
  static const std::string source = R"(#version 330 core
void main() {
  vec2 corner = vec2(gl_VertexID == 1 ? 3.0 : -1.0, gl_VertexID == 2 ? 3.0 : -1.0);
  gl_Position = vec4(corner, 0.0, 1.0);
}
)";
  return source;
}

/// color_at() of viewer/model/heatmap_image.hpp, pixel by pixel; row 0 of the picture is row 0 of the
/// framebuffer. KTILE_BITS, KHATCH_WIDTH and KFADE are the model's constants.
inline const std::string& heatmap_fragment_source() {
  static const std::string source = R"(
uniform usampler2DArray tiles;  // [layer, row, column]: values' bits, since samplers may change a NaN
uniform isampler2D sources;     // [tile row, tile column] in view: layer (-1: none), levels above the drawn one
uniform isampler2D columns;     // [pixel]: texel (-1: outside) * 2 + whether it is faded
uniform isampler2D rows;        // [pixel]: texel (-1: outside)
uniform sampler2D colors;       // [256]
uniform ivec2 first_tile;       // column, row of sources' first
uniform int kind;               // 0 linear, 1 log, 2 symlog
uniform float low, high, threshold;
uniform float start, span;      // symlog of low, and of high less that; log: of high / low
uniform bool mark_beyond;
uniform vec3 outside, pending, hatch_a, hatch_b, under, over;
out vec4 pixel;

// Natural logarithm of x > 0 to float's accuracy, which log() need not have.
float ln(float x) {
  int bits = floatBitsToInt(x);
  int exponent = (bits - 0x3F3504F3) >> 23;
  float mantissa = intBitsToFloat(bits - (exponent << 23));  // sqrt(1/2) .. sqrt(2)
  float s = (mantissa - 1.0) / (mantissa + 1.0);
  float s2 = s * s;
  float series = 1.0 + s2 * (1.0 / 3.0 + s2 * (1.0 / 5.0 + s2 * (1.0 / 7.0 + s2 / 9.0)));
  return float(exponent) * 0.693147181 + 2.0 * s * series;
}

float symlog(float value) {
  float size = ln(1.0 + abs(value) / threshold);
  return value < 0.0 ? -size : size;
}

// ValueScale::place() of a finite value, 0 where it is below every range.
float place(float value) {
  if (kind == 1) return value > 0.0 ? ln(value / low) / span : 0.0;
  if (kind == 2) return (symlog(value) - start) / span;
  return (value - low) / (high - low);
}

vec3 color_of(float t) {
  float position = (t > 0.0 ? min(t, 1.0) : 0.0) * 255.0;
  int below = min(int(position), 254);
  vec3 from = texelFetch(colors, ivec2(below, 0), 0).rgb;
  vec3 to = texelFetch(colors, ivec2(below + 1, 0), 0).rgb;
  return from + (to - from) * (position - float(below));
}

vec3 color_inside(ivec2 at, ivec2 texel) {
  ivec2 source = texelFetch(sources, (texel >> KTILE_BITS) - first_tile, 0).rg;
  if (source.r < 0) return pending;
  ivec2 within = (texel >> source.g) & ((1 << KTILE_BITS) - 1);
  uint bits = texelFetch(tiles, ivec3(within, source.r), 0).r;
  uint magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return (at.x + at.y) / KHATCH_WIDTH % 2 == 0 ? hatch_a : hatch_b;
  bool negative = bits != magnitude;
  if (magnitude == 0x7F800000u) {
    if (mark_beyond) return negative ? under : over;
    return color_of(negative ? 0.0 : 1.0);
  }
  float value = uintBitsToFloat(bits);
  if (mark_beyond && value < low) return under;
  if (mark_beyond && value > high) return over;
  return color_of(place(value));
}

void main() {
  ivec2 at = ivec2(gl_FragCoord.xy);
  int column = texelFetch(columns, ivec2(at.x, 0), 0).r;
  int row = texelFetch(rows, ivec2(at.y, 0), 0).r;
  vec3 color = outside;
  if (column >= 0 && row >= 0) {
    color = color_inside(at, ivec2(column >> 1, row));
    if ((column & 1) != 0) color += (outside - color) * KFADE;
  }
  pixel = vec4(color, 1.0);
}
)";
  return source;
}

}  // namespace kvreplay::viewer
