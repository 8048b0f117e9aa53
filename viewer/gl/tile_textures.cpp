#include "viewer/gl/tile_textures.hpp"

#include "viewer/gl/gl_error.hpp"

#include <algorithm>

namespace kvreplay::viewer {

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

}  // namespace kvreplay::viewer
