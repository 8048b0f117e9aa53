#include "viewer/gl/heatmap_renderer.hpp"

#include "viewer/gl/gl_error.hpp"
#include "viewer/gl/heatmap_shader.hpp"
#include "viewer/gl/shader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

namespace kvreplay::viewer {
namespace {

enum Unit : GLint { unit_tiles, unit_sources, unit_columns, unit_rows, unit_colors };

std::string with_constants(const std::string& fragment_source) {
  return fmt::format(
             "#version 330 core\n#define KTILE_BITS {}\n#define KHATCH_WIDTH {}\n#define KFADE {:.9g}\n",
             kTileBits, kHatchWidth, kFade) +
         fragment_source;
}

/// A texture of `width` x `height` entries that the shader fetches one by one.
void fill_table(const GlTexture& texture, GLint inside, GLsizei width, GLsizei height, GLenum format,
                GLenum type, const void* entries) {
  glBindTexture(GL_TEXTURE_2D, texture.id());
  glPixelStorei(GL_UNPACK_ALIGNMENT, 1);
  glTexImage2D(GL_TEXTURE_2D, 0, inside, width, height, 0, format, type, entries);
  glPixelStorei(GL_UNPACK_ALIGNMENT, 4);
  glTexParameteri(GL_TEXTURE_2D, GL_TEXTURE_MIN_FILTER, GL_NEAREST);
  glTexParameteri(GL_TEXTURE_2D, GL_TEXTURE_MAG_FILTER, GL_NEAREST);
  glTexParameteri(GL_TEXTURE_2D, GL_TEXTURE_MAX_LEVEL, 0);
}

void fill_axis(const GlTexture& texture, const std::vector<std::int32_t>& texels) {
  fill_table(texture, GL_R32I, static_cast<GLsizei>(texels.size()), 1, GL_RED_INTEGER, GL_INT, texels.data());
}

/// First tile and number of tiles along an axis.
std::pair<Index, Index> tiles_along(const std::vector<std::int32_t>& texels) {
  std::int32_t first = -1, last = -1;
  for (const std::int32_t texel : texels) {
    if (texel < 0) continue;
    first = first < 0 ? texel : std::min(first, texel);
    last = std::max(last, texel);
  }
  if (first < 0) return {0, 0};
  return {first >> kTileBits, (last >> kTileBits) - (first >> kTileBits) + 1};
}

void set_color(GLint uniform, Rgb color) {
  constexpr float most = 255;
  glUniform3f(uniform, static_cast<float>(color.r) / most, static_cast<float>(color.g) / most,
              static_cast<float>(color.b) / most);
}

float symlog(float value, float threshold) {
  return std::copysign(std::log(1.0F + std::abs(value) / threshold), value);
}

}  // namespace

HeatmapProgram::HeatmapProgram() : HeatmapProgram(heatmap_fragment_source()) {}

HeatmapProgram::HeatmapProgram(const std::string& fragment_source)
    : program_(link_program(heatmap_vertex_source(), with_constants(fragment_source))) {
  const auto uniform = [this](const char* name) { return uniform_of(program_, name); };
  first_tile_ = uniform("first_tile");
  kind_ = uniform("kind");
  low_ = uniform("low");
  high_ = uniform("high");
  threshold_ = uniform("threshold");
  start_ = uniform("start");
  span_ = uniform("span");
  mark_beyond_ = uniform("mark_beyond");
  outside_ = uniform("outside");
  pending_ = uniform("pending");
  hatch_a_ = uniform("hatch_a");
  hatch_b_ = uniform("hatch_b");
  under_ = uniform("under");
  over_ = uniform("over");
  glUseProgram(program_.id());
  glUniform1i(uniform("tiles"), unit_tiles);
  glUniform1i(uniform("sources"), unit_sources);
  glUniform1i(uniform("columns"), unit_columns);
  glUniform1i(uniform("rows"), unit_rows);
  glUniform1i(uniform("colors"), unit_colors);
  glUseProgram(0);
  check_gl("the heatmaps' shader");
}

HeatmapRenderer::HeatmapRenderer(std::shared_ptr<const HeatmapProgram> program, HeatmapLimits limits)
    : program_(std::move(program)), limits_(limits) {}

std::vector<Rgb> HeatmapRenderer::pixels() const {
  return buffer_ ? buffer_->pixels(FirstRow::zero) : std::vector<Rgb>{};
}

bool HeatmapRenderer::draw(const HeatmapImage& image, const TileMap& tiles) {
  if (image.width < 1 || image.height < 1) return false;
  glActiveTexture(GL_TEXTURE0);
  const bool changed = !drawn_ || !(*drawn_ == image);
  if (changed) {
    drawn_.reset();  // in case that what follows throws
    if (!buffer_) buffer_.emplace(image.width, image.height);
    buffer_->resize(image.width, image.height);
    place_axes(image);
  }
  const int before = uploads_;
  std::vector<Source> sources = find_sources(image, tiles);
  if (changed || uploads_ != before || sources != drawn_sources_) {
    drawn_sources_ = std::move(sources);
    paint(image);
    drawn_ = image;
  }
  return unfinished_;
}

void HeatmapRenderer::place_axes(const HeatmapImage& image) {
  const int level = drawn_level(image.camera, image.size);
  std::vector<std::int32_t> columns = axis_texels(image.camera.x, image.width, image.size.columns, level);
  const std::vector<std::int32_t> rows = axis_texels(image.camera.y, image.height, image.size.rows, level);
  const auto [first_column, tile_columns] = tiles_along(columns);
  const auto [first_row, tile_rows] = tiles_along(rows);
  grid_ = {level, first_row, first_column, tile_rows, tile_columns};
  const std::vector<std::uint8_t> faded = faded_pixels(image);
  for (std::size_t x = 0; x < columns.size(); ++x)
    if (columns[x] >= 0) columns[x] = columns[x] * 2 + (faded[x] != 0 ? 1 : 0);
  fill_axis(columns_, columns);
  fill_axis(rows_, rows);
  if (colors_filled_ != image.colors)
    fill_table(colors_, GL_RGB8, 256, 1, GL_RGB, GL_UNSIGNED_BYTE, color_table(image.colors).data());
  colors_filled_ = image.colors;
  check_gl("a heatmap's axes");
}

std::vector<HeatmapRenderer::Source> HeatmapRenderer::find_sources(const HeatmapImage& image,
                                                                   const TileMap& tiles) {
  unfinished_ = false;
  std::vector<Source> sources(grid_.count());
  if (sources.empty()) return sources;
  tiles_.reserve(sources.size(), limits_.bytes);
  tiles_.begin();
  const auto tile_at = [&](const TileKey& key) { return tiles.at(key); };

  // What is there first, so that nothing that is drawn gives way; then what is missing, the middle first.
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const std::optional<FoundTile> found = find_tile(tiles, grid_.key(i), image.size);
    if (!found) continue;
    if (const std::optional<int> layer = tiles_.find(tile_at(found->key)))
      sources[i] = {static_cast<std::int16_t>(*layer), static_cast<std::int16_t>(found->shift)};
    else
      missing.push_back(i);
  }
  const auto off_middle = [&](std::size_t i) {
    const TileKey key = grid_.key(i);
    const Index x = 2 * (key.column - grid_.column) + 1 - grid_.columns;
    const Index y = 2 * (key.row - grid_.row) + 1 - grid_.rows;
    return x * x + y * y;
  };
  std::stable_sort(missing.begin(), missing.end(),
                   [&](std::size_t a, std::size_t b) { return off_middle(a) < off_middle(b); });
  int left = std::max(limits_.uploads, 1);
  for (const std::size_t i : missing) {
    const TileKey wanted = grid_.key(i);
    std::optional<FoundTile> found = find_tile(tiles, wanted, image.size);
    // The nearest one that is there, or can be brought in time.
    while (found) {
      const std::shared_ptr<const Tile>& tile = tile_at(found->key);
      std::optional<int> layer = tiles_.find(tile);
      if (!layer && left > 0) {
        layer = tiles_.upload(tile);
        if (layer) {
          --left;
          ++uploads_;
        }
      } else if (!layer) {
        unfinished_ = true;
      }
      const int shift = found->key.level - wanted.level;
      if (layer) {
        sources[i] = {static_cast<std::int16_t>(*layer), static_cast<std::int16_t>(shift)};
        break;
      }
      if (found->key.level >= top_level(image.size)) break;
      found = find_tile(tiles, found->key.parent(), image.size);
    }
  }
  return sources;
}

void HeatmapRenderer::set_uniforms(const HeatmapImage& image) const {
  const HeatmapProgram& program = *program_;
  const ValueScale& scale = image.scale;
  float start = 0, span = 1;
  if (scale.kind == ScaleKind::log) {
    span = std::log(scale.high / scale.low);
  } else if (scale.kind == ScaleKind::symlog) {
    start = symlog(scale.low, scale.threshold);
    span = symlog(scale.high, scale.threshold) - start;
  }
  glUniform2i(program.first_tile_, static_cast<GLint>(grid_.column), static_cast<GLint>(grid_.row));
  glUniform1i(program.kind_, scale.kind == ScaleKind::log ? 1 : scale.kind == ScaleKind::symlog ? 2 : 0);
  glUniform1f(program.low_, scale.low);
  glUniform1f(program.high_, scale.high);
  glUniform1f(program.threshold_, scale.threshold);
  glUniform1f(program.start_, start);
  glUniform1f(program.span_, span);
  glUniform1i(program.mark_beyond_, image.ink.mark_beyond ? 1 : 0);
  set_color(program.outside_, image.ink.outside);
  set_color(program.pending_, image.ink.pending);
  set_color(program.hatch_a_, image.ink.hatch_a);
  set_color(program.hatch_b_, image.ink.hatch_b);
  set_color(program.under_, image.ink.under);
  set_color(program.over_, image.ink.over);
}

void HeatmapRenderer::paint(const HeatmapImage& image) {
  constexpr Source none;
  const bool empty = drawn_sources_.empty();
  fill_table(sources_, GL_RG16I, empty ? 1 : static_cast<GLsizei>(grid_.columns),
             empty ? 1 : static_cast<GLsizei>(grid_.rows), GL_RG_INTEGER, GL_SHORT,
             empty ? &none : drawn_sources_.data());
  buffer_->bind();
  for (const GLenum state : {GL_BLEND, GL_SCISSOR_TEST, GL_DEPTH_TEST, GL_CULL_FACE, GL_STENCIL_TEST})
    glDisable(state);
  glColorMask(GL_TRUE, GL_TRUE, GL_TRUE, GL_TRUE);
  glPolygonMode(GL_FRONT_AND_BACK, GL_FILL);
  glUseProgram(program_->program_.id());
  set_uniforms(image);
  const auto use = [](Unit unit, GLenum target, GLuint texture) {
    glActiveTexture(GL_TEXTURE0 + static_cast<GLenum>(unit));
    glBindSampler(static_cast<GLuint>(unit), 0);
    glBindTexture(target, texture);
  };
  use(unit_tiles, GL_TEXTURE_2D_ARRAY, tiles_.texture());
  use(unit_sources, GL_TEXTURE_2D, sources_.id());
  use(unit_columns, GL_TEXTURE_2D, columns_.id());
  use(unit_rows, GL_TEXTURE_2D, rows_.id());
  use(unit_colors, GL_TEXTURE_2D, colors_.id());
  glActiveTexture(GL_TEXTURE0);
  glBindVertexArray(no_vertices_.id());
  glDrawArrays(GL_TRIANGLES, 0, 3);
  glBindVertexArray(0);
  glUseProgram(0);
  check_gl("drawing a heatmap");
  ++drawings_;
}

}  // namespace kvreplay::viewer
