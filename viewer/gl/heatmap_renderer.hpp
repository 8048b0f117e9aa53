#pragma once

#include "viewer/gl/frame_buffer.hpp"
#include "viewer/gl/gl_object.hpp"
#include "viewer/model/heatmap_image.hpp"
#include "viewer/model/tiles.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
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

/// heatmap.vert and heatmap.frag, which go behind the constants that HeatmapProgram defines: the model's
/// KTILE_BITS, KHATCH_WIDTH and KFADE; KCOLORS, the number of colours; KIND, 0 linear, 1 log, 2 symlog
/// (software renderers compute both sides of every branch, so that each kind has a program of its own).
const std::string& heatmap_vertex_source();
const std::string& heatmap_fragment_source();

/// The shader of heatmaps, compiled for every kind of scale. One serves all renderers of a context. Throws
/// InputError where it does not compile.
class HeatmapProgram {
 public:
  HeatmapProgram();
  /// For tests: from another fragment source than heatmap_fragment_source().
  explicit HeatmapProgram(const std::string& fragment_source);

  /// Makes the scale's program the current one, ready to draw the image.
  void use(const HeatmapImage& image) const;

  /// Texture units that the shader expects.
  enum Unit : GLint { unit_tiles, unit_columns, unit_rows, unit_colors };
  /// Entries of the colour table: fine enough to need no interpolation.
  static constexpr int kColors = 4096;

 private:
  std::vector<GlProgram> by_kind_;  // [ScaleKind]
};

struct HeatmapLimits {
  std::size_t bytes = std::size_t{64} << 20;  ///< of tiles on the graphics side, unless one view needs more
  int uploads = 12;                           ///< tiles brought there in one frame
};

/// Draws a heatmap into a texture of its own, and again only where the image or its tiles have changed.
class HeatmapRenderer {
 public:
  explicit HeatmapRenderer(std::shared_ptr<const HeatmapProgram> program, HeatmapLimits limits = {});

  /// Brings the picture up to date; image.scale must be usable(). Tiles beyond the frame's uploads are shown
  /// by those above them, or pending: true where another frame is due for them. Leaves its own framebuffer
  /// bound. Throws InputError for sizes that OpenGL cannot have; nothing is drawn below 1 x 1.
  bool draw(const HeatmapImage& image, const TileMap& tiles);
  void set_limits(HeatmapLimits limits) { limits_ = limits; }

  /// For ImGui::Image(): the picture's first row is the texture's. 0 before the first drawing.
  GLuint texture() const { return buffer_ ? buffer_->texture() : 0; }
  /// [height, width], top first.
  std::vector<Rgb> pixels() const;

  std::size_t tile_bytes() const { return tiles_.bytes(); }
  int drawings() const { return drawings_; }  ///< so far
  int uploads() const { return uploads_; }    ///< so far

 private:
  /// Source of a tile in view, as the shader reads it.
  struct Source {
    std::int16_t layer = -1, shift = 0;
    bool operator==(const Source&) const = default;
  };
  /// Pixels [begin, end) along an axis, which lie in one row or column of tiles.
  struct Strip {
    Index tile = 0;
    int begin = 0, end = 0;
  };
  static std::vector<Strip> strips_of(const std::vector<std::int32_t>& texels);
  /// The tiles of the drawn level that the picture touches.
  struct Grid {
    int level = 0;
    std::vector<Strip> rows, columns;
    TileKey key(std::size_t i) const {
      return {level, rows[i / columns.size()].tile, columns[i % columns.size()].tile};
    }
    std::size_t count() const { return rows.size() * columns.size(); }
  };

  void place_axes(const HeatmapImage& image);
  std::vector<Source> find_sources(const HeatmapImage& image, const TileMap& tiles);
  void fill_corners() const;
  void paint(const HeatmapImage& image);

  std::shared_ptr<const HeatmapProgram> program_;
  HeatmapLimits limits_;
  GlVertexArray vertices_;
  GlBuffer corners_;
  GlTexture columns_, rows_, colors_;
  std::optional<Coloring> colors_filled_;
  TileTextures tiles_;
  std::optional<FrameBuffer> buffer_;
  std::optional<HeatmapImage> drawn_;  ///< Content of the picture.
  std::vector<Source> drawn_sources_;
  Grid grid_;
  bool unfinished_ = false;
  int drawings_ = 0, uploads_ = 0;
};

}  // namespace kvreplay::viewer
