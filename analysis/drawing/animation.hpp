#pragma once

#include "analysis/drawing/color_scale.hpp"
#include "sim/head_group.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvreplay {

/// A colour of `palette` for each distinct colour of `counted`, which says how many pixels have it: all as
/// they are where they fit, else parts of the colour space that hold them, split where they differ most.
struct Palette {
  std::vector<Rgb> colors;  ///< at most the number asked for
  /// The index of a colour that was counted.
  std::uint8_t of(Rgb color) const;

  struct Use {
    std::uint32_t color = 0;  ///< 0xRRGGBB
    std::uint64_t pixels = 0;
    std::uint8_t index = 0;
  };
  std::vector<Use> uses;  ///< ascending by color
};
/// `most`: 1 to 256. Pixels of all pictures together.
Palette palette_of(std::span<const std::vector<Rgb>> pictures, std::size_t most);

/// A film: pictures of one size that follow each other, again and again.
class Animation {
 public:
  Animation(Index width, Index height) : width_(width), height_(height) {}
  /// Pixels [height, width], top first, to be seen for so long; one that is like the last one prolongs that.
  void add(std::vector<Rgb> pixels, int milliseconds);
  std::size_t frames() const { return pictures_.size(); }
  /// As an APNG file's bytes (PNG, third edition): one palette of 255 colours and "as before", of each frame
  /// after the first only the rectangle that changes. What knows PNG alone shows the first one. Throws
  /// InputError where libpng cannot, or there is no frame.
  std::vector<std::byte> png() const;

 private:
  Index width_, height_;
  std::vector<std::vector<Rgb>> pictures_;
  std::vector<int> milliseconds_;
};

}  // namespace kvreplay
