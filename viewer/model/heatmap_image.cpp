#include "viewer/model/heatmap_image.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay::viewer {

std::vector<std::int32_t> axis_texels(const AxisView& axis, int pixels, Index cells, int level) {
  std::vector<std::int32_t> shown(std::max(pixels, 0), -1);
  if (shown.empty() || cells <= 0) return shown;
  const double end = static_cast<double>(cells);
  std::ptrdiff_t last = -1;  // the last pixel whose middle lies in the matrix
  for (std::size_t p = 0; p < shown.size(); ++p) {
    const double cell = axis.cell_at(static_cast<double>(p) + 0.5);
    if (!(cell >= 0 && cell < end)) continue;
    shown[p] = static_cast<std::int32_t>(static_cast<Index>(cell) >> level);
    last = static_cast<std::ptrdiff_t>(p);
  }
  const double edge = axis.pixel_of(end);
  std::int32_t newest = static_cast<std::int32_t>(texels(cells, level)) - 1;
  if (last < 0 || shown[last] >= newest || edge > pixels + 1e-6) return shown;
  // The pixel that the edge crosses is free for it; else it pushes the others back, as far as each of them
  // is the only one of its texel.
  if (edge > static_cast<double>(last + 1) + 1e-6 && last + 1 < pixels) ++last;
  for (; last >= 0 && shown[last] < newest; --last, --newest) shown[last] = newest;
  return shown;
}

std::vector<std::uint8_t> faded_pixels(const HeatmapImage& image) {
  std::vector<std::uint8_t> faded(std::max(image.width, 0), 0);
  if (image.faded_columns.empty()) return faded;
  const int level = drawn_level(image.camera, image.size);
  const std::vector<std::int32_t> shown = axis_texels(image.camera.x, image.width, image.size.columns, level);
  const Index known = std::min(std::ssize(image.faded_columns), image.size.columns);
  for (std::size_t p = 0; p < shown.size(); ++p) {
    const Index first = static_cast<Index>(shown[p]) << level;
    if (shown[p] < 0 || first >= known) continue;
    const Index end = std::min(first + (Index{1} << level), image.size.columns);
    faded[p] =
        end <= known && std::all_of(image.faded_columns.begin() + first, image.faded_columns.begin() + end,
                                    [](std::uint8_t is) { return is != 0; })
            ? 1
            : 0;
  }
  return faded;
}

}  // namespace kvreplay::viewer
