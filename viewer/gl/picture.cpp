#include "viewer/gl/picture.hpp"

#include "analysis/drawing/picture.hpp"
#include "data/atomic_file.hpp"
#include "viewer/gl/frame_buffer.hpp"

#include <algorithm>

namespace kvreplay::viewer {

void write_picture(const std::filesystem::path& path, const std::vector<Rgb>& pixels, int width, int height) {
  write_output(path, png_bytes(pixels, width, height));
}

void write_area(const std::filesystem::path& path, const Area& area, int width, int height) {
  const std::vector<Rgb> all = read_pixels(width, height, FirstRow::last);
  const int left = std::clamp(static_cast<int>(area.x), 0, width),
            top = std::clamp(static_cast<int>(area.y), 0, height);
  const int right = std::clamp(static_cast<int>(area.x + area.width), left, width);
  const int bottom = std::clamp(static_cast<int>(area.y + area.height), top, height);
  std::vector<Rgb> part;
  for (int y = top; y < bottom; ++y)
    part.insert(part.end(), all.begin() + static_cast<std::ptrdiff_t>(y) * width + left,
                all.begin() + static_cast<std::ptrdiff_t>(y) * width + right);
  write_picture(path, part, right - left, bottom - top);
}

}  // namespace kvreplay::viewer
