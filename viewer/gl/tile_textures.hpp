#pragma once

#include "viewer/gl/gl_object.hpp"
#include "viewer/model/tiles.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace kvreplay::viewer {

/// Tiles on the graphics side: the layers of one array texture (R32UI, kTileSize x kTileSize, the values'
/// bits), the least recently drawn giving way to new ones. A tile is known by its identity, not by its
/// content; it is not kept alive.
class TileTextures {
 public:
  static constexpr std::size_t kLayerBytes = sizeof(float) * kTileSize * kTileSize;

  /// Makes room for `needed` tiles at once, and for up to three times as many while that is within `bytes`.
  /// Where that takes another texture, all tiles are forgotten. OpenGL may have fewer layers than needed.
  void reserve(std::size_t needed, std::size_t bytes);

  /// From here on no layer is in use.
  void begin() { ++now_; }
  /// The tile's layer, in use from now on; empty where it is not here.
  std::optional<int> find(const std::shared_ptr<const Tile>& tile);
  /// Brings a tile that is not here; its layer is in use. Empty where all layers are in use, or the tile is
  /// none (more or fewer values than rows x columns, larger than kTileSize).
  std::optional<int> upload(const std::shared_ptr<const Tile>& tile);

  GLuint texture() const { return texture_ ? texture_->id() : 0; }
  std::size_t layers() const { return slots_.size(); }
  std::size_t bytes() const { return slots_.size() * kLayerBytes; }

 private:
  struct Slot {
    const Tile* address = nullptr;
    std::weak_ptr<const Tile> tile;  ///< its address may belong to another tile by now
    std::uint64_t used = 0;
  };
  std::optional<GlTexture> texture_;
  std::vector<Slot> slots_;
  std::map<const Tile*, std::size_t> by_address_;
  std::uint64_t now_ = 1;
};

}  // namespace kvreplay::viewer
