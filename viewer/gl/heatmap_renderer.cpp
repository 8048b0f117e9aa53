#include "viewer/gl/heatmap_renderer.hpp"

#include "viewer/gl/gl_object.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace kvreplay::viewer {
namespace {

/// A texture of `count` x 1 entries that the shader fetches one by one.
void fill_table(const GlTexture& texture, GLint inside, std::size_t count, GLenum format, GLenum type,
                const void* entries) {
  glBindTexture(GL_TEXTURE_2D, texture.id());
  glBindBuffer(GL_PIXEL_UNPACK_BUFFER, 0);
  glTexImage2D(GL_TEXTURE_2D, 0, inside, static_cast<GLsizei>(count), 1, 0, format, type, entries);
  glTexParameteri(GL_TEXTURE_2D, GL_TEXTURE_MIN_FILTER, GL_NEAREST);
  glTexParameteri(GL_TEXTURE_2D, GL_TEXTURE_MAG_FILTER, GL_NEAREST);
  glTexParameteri(GL_TEXTURE_2D, GL_TEXTURE_MAX_LEVEL, 0);
}

void fill_axis(const GlTexture& texture, const std::vector<std::int32_t>& texels) {
  fill_table(texture, GL_R32I, texels.size(), GL_RED_INTEGER, GL_INT, texels.data());
}

void fill_colors(const GlTexture& texture, Coloring wanted) {
  std::vector<std::array<std::uint8_t, 4>> colors;
  for (int i = 0; i < HeatmapProgram::kColors; ++i) {
    const Rgb color = color_of(wanted, static_cast<float>(i) / (HeatmapProgram::kColors - 1));
    colors.push_back({color.r, color.g, color.b, 255});
  }
  fill_table(texture, GL_RGBA8, colors.size(), GL_RGBA, GL_UNSIGNED_BYTE, colors.data());
}

float part_of(std::uint8_t level) { return static_cast<float>(level) / 255; }

}  // namespace

void TileTextures::reserve(std::size_t needed, std::size_t bytes) {
  GLint most = 0;
  glGetIntegerv(GL_MAX_ARRAY_TEXTURE_LAYERS, &most);
  needed = std::clamp<std::size_t>(needed, 1, static_cast<std::size_t>(most));
  const std::size_t allowed = std::max(needed, bytes / kLayerBytes);
  const bool too_many = slots_.size() > allowed;
  if (slots_.size() >= needed && !too_many) return;
  const std::size_t layers = std::min({3 * needed, allowed, static_cast<std::size_t>(most)});
  texture_.emplace();
  slots_.assign(layers, {});
  by_address_.clear();
  glBindTexture(GL_TEXTURE_2D_ARRAY, texture_->id());
  glTexImage3D(GL_TEXTURE_2D_ARRAY, 0, GL_R32UI, kTileSize, kTileSize, static_cast<GLsizei>(layers), 0,
               GL_RED_INTEGER, GL_UNSIGNED_INT, nullptr);
  glTexParameteri(GL_TEXTURE_2D_ARRAY, GL_TEXTURE_MIN_FILTER, GL_NEAREST);
  glTexParameteri(GL_TEXTURE_2D_ARRAY, GL_TEXTURE_MAG_FILTER, GL_NEAREST);
  glTexParameteri(GL_TEXTURE_2D_ARRAY, GL_TEXTURE_MAX_LEVEL, 0);
  check_gl("room for tiles");
}

std::optional<int> TileTextures::find(const std::shared_ptr<const Tile>& tile) {
  const auto at = by_address_.find(tile.get());
  if (at == by_address_.end()) return {};
  Slot& slot = slots_[at->second];
  if (slot.tile.owner_before(tile) || tile.owner_before(slot.tile)) return {};
  slot.used = now_;
  return static_cast<int>(at->second);
}

std::optional<int> TileTextures::upload(const std::shared_ptr<const Tile>& tile) {
  const Tile& of = *tile;
  if (of.rows < 1 || of.columns < 1 || of.rows > kTileSize || of.columns > kTileSize ||
      of.values.size() != static_cast<std::size_t>(of.rows * of.columns))
    return {};
  const auto oldest = std::min_element(slots_.begin(), slots_.end(),
                                       [](const Slot& a, const Slot& b) { return a.used < b.used; });
  if (oldest == slots_.end() || oldest->used == now_) return {};
  const auto layer = static_cast<std::size_t>(oldest - slots_.begin());
  glBindBuffer(GL_PIXEL_UNPACK_BUFFER, 0);
  glPixelStorei(GL_UNPACK_ALIGNMENT, 4);
  glPixelStorei(GL_UNPACK_ROW_LENGTH, 0);
  glBindTexture(GL_TEXTURE_2D_ARRAY, texture_->id());
  glTexSubImage3D(GL_TEXTURE_2D_ARRAY, 0, 0, 0, static_cast<GLint>(layer), static_cast<GLsizei>(of.columns),
                  static_cast<GLsizei>(of.rows), 1, GL_RED_INTEGER, GL_UNSIGNED_INT, of.values.data());
  check_gl("bringing a tile");
  // Another tile may have been made where one that is gone had its place.
  if (const auto stale = by_address_.find(tile.get()); stale != by_address_.end()) slots_[stale->second] = {};
  if (oldest->address != nullptr) by_address_.erase(oldest->address);
  *oldest = {tile.get(), tile, now_};
  by_address_[tile.get()] = layer;
  return static_cast<int>(layer);
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

std::vector<HeatmapRenderer::Strip> HeatmapRenderer::strips_of(const std::vector<std::int32_t>& texels) {
  std::vector<Strip> strips;
  for (std::size_t p = 0; p < texels.size(); ++p) {
    if (texels[p] < 0) continue;
    const Index tile = texels[p] >> kTileBits;
    const int pixel = static_cast<int>(p);
    if (strips.empty() || strips.back().tile != tile || strips.back().end != pixel)
      strips.push_back({tile, pixel, pixel});
    strips.back().end = pixel + 1;
  }
  return strips;
}

void HeatmapRenderer::place_axes(const HeatmapImage& image) {
  const int level = drawn_level(image.camera, image.size);
  std::vector<std::int32_t> columns = axis_texels(image.camera.x, image.width, image.size.columns, level);
  const std::vector<std::int32_t> rows = axis_texels(image.camera.y, image.height, image.size.rows, level);
  grid_ = {level, strips_of(rows), strips_of(columns)};
  const std::vector<std::uint8_t> faded = faded_pixels(image);
  for (std::size_t x = 0; x < columns.size(); ++x)
    if (columns[x] >= 0) columns[x] = columns[x] * 2 + (faded[x] != 0 ? 1 : 0);
  fill_axis(columns_, columns);
  fill_axis(rows_, rows);
  if (colors_filled_ != image.colors) fill_colors(colors_, image.colors);
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

  // Tiles that are already on the GPU come first, so that none that is drawn gets evicted; then the missing
  // ones, from the middle outwards.
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
    const auto columns = std::ssize(grid_.columns), rows = std::ssize(grid_.rows);
    const Index x = 2 * (static_cast<Index>(i) % columns) + 1 - columns;
    const Index y = 2 * (static_cast<Index>(i) / columns) + 1 - rows;
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

void HeatmapRenderer::fill_corners() const {
  struct Corner {
    GLint x, y, layer, shift;
  };
  std::vector<Corner> corners;
  corners.reserve(6 * grid_.count());
  for (std::size_t i = 0; i < grid_.count(); ++i) {
    const Strip& across = grid_.columns[i % grid_.columns.size()];
    const Strip& down = grid_.rows[i / grid_.columns.size()];
    const Source source = drawn_sources_[i];
    const auto corner = [&source](int x, int y) { return Corner{x, y, source.layer, source.shift}; };
    const Corner a = corner(across.begin, down.begin), b = corner(across.end, down.begin);
    const Corner c = corner(across.begin, down.end), d = corner(across.end, down.end);
    corners.insert(corners.end(), {a, b, c, c, b, d});
  }
  glBindVertexArray(vertices_.id());
  glBindBuffer(GL_ARRAY_BUFFER, corners_.id());
  glBufferData(GL_ARRAY_BUFFER, static_cast<GLsizeiptr>(corners.size() * sizeof(Corner)), corners.data(),
               GL_STREAM_DRAW);
  glEnableVertexAttribArray(0);
  glVertexAttribIPointer(0, 4, GL_INT, sizeof(Corner), nullptr);
}

void HeatmapRenderer::paint(const HeatmapImage& image) {
  buffer_->bind();
  for (const GLenum state : {GL_BLEND, GL_SCISSOR_TEST, GL_DEPTH_TEST, GL_CULL_FACE, GL_STENCIL_TEST})
    glDisable(state);
  glColorMask(GL_TRUE, GL_TRUE, GL_TRUE, GL_TRUE);
  glPolygonMode(GL_FRONT_AND_BACK, GL_FILL);
  const Rgb outside = image.ink.outside;
  glClearColor(part_of(outside.r), part_of(outside.g), part_of(outside.b), 1.0F);
  glClear(GL_COLOR_BUFFER_BIT);
  if (grid_.count() > 0) {
    program_->use(image);
    const auto bind = [](HeatmapProgram::Unit unit, GLenum target, GLuint texture) {
      glActiveTexture(GL_TEXTURE0 + static_cast<GLenum>(unit));
      glBindSampler(static_cast<GLuint>(unit), 0);
      glBindTexture(target, texture);
    };
    bind(HeatmapProgram::unit_tiles, GL_TEXTURE_2D_ARRAY, tiles_.texture());
    bind(HeatmapProgram::unit_columns, GL_TEXTURE_2D, columns_.id());
    bind(HeatmapProgram::unit_rows, GL_TEXTURE_2D, rows_.id());
    bind(HeatmapProgram::unit_colors, GL_TEXTURE_2D, colors_.id());
    glActiveTexture(GL_TEXTURE0);
    fill_corners();
    glDrawArrays(GL_TRIANGLES, 0, static_cast<GLsizei>(6 * grid_.count()));
    glBindVertexArray(0);
    glBindBuffer(GL_ARRAY_BUFFER, 0);
    glUseProgram(0);
  }
  check_gl("drawing a heatmap");
  ++drawings_;
}

}  // namespace kvreplay::viewer
