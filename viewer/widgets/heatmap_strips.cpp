// The strips beside a heatmap: one number a column above it, one number a row at its right.

#include "viewer/widgets/heatmap_view.hpp"
#include "viewer/widgets/theme.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

namespace kvreplay::viewer {
namespace {

/// On a log scale the shortest bars stand for this percentile in view, but for no less than so small a share
/// of the largest.
constexpr double kShortPercent = 5;
constexpr float kLeastShare = 1e-6F;

struct Bars {
  std::vector<float> magnitudes;  ///< by pixel; -1: none
  float most = 0;
};

Bars bars_of(const StripValues& strip, const AxisView& axis, int pixels) {
  Bars bars;
  bars.magnitudes.assign(pixels, -1.0F);
  const auto entry_of = [&](double cell) {
    return static_cast<Index>(
        std::floor((cell - static_cast<double>(strip.first)) / static_cast<double>(strip.step)));
  };
  const auto entries = std::ssize(strip.values);
  for (int p = 0; p < pixels; ++p) {
    const Index first = entry_of(axis.cell_at(p));
    const Index end = std::max(entry_of(std::ceil(axis.cell_at(p + 1)) - 1), first) + 1;
    for (Index i = std::max<Index>(first, 0); i < std::min(end, entries); ++i) {
      const float v = std::abs(strip.values[i]);
      if (!std::isfinite(v)) continue;
      float& bar = bars.magnitudes[p];
      bar = std::max(bar, v);
      bars.most = std::max(bars.most, v);
    }
  }
  return bars;
}

ValueScale scale_of(const Bars& bars, bool log) {
  std::vector<float> positive;
  std::copy_if(bars.magnitudes.begin(), bars.magnitudes.end(), std::back_inserter(positive),
               [](float v) { return v > 0; });
  ValueScale scale;
  scale.kind = log ? ScaleKind::log : ScaleKind::linear;
  scale.low = log ? std::max(percentile(positive, kShortPercent), bars.most * kLeastShare) * 0.8F : 0;
  scale.high = bars.most;
  return usable(scale);
}

}  // namespace

void HeatmapView::draw_strip(const Frame& f, const Strip& strip, bool of_rows, HeatmapHit& hit) const {
  const Theme& t = theme();
  const AxisView& axis = of_rows ? image_.camera.y : image_.camera.x;
  const int pixels = of_rows ? image_.height : image_.width;
  const Index cells = of_rows ? image_.size.rows : image_.size.columns;
  const auto begin = std::clamp<Index>(static_cast<Index>(std::floor(axis.start)), 0, cells);
  const auto end = std::clamp<Index>(static_cast<Index>(std::ceil(axis.cell_at(pixels))), begin, cells);
  const StripValues known = strip.values(begin, end, axis.cells_per_pixel);
  const Bars bars = bars_of(known, axis, pixels);
  const ValueScale scale = scale_of(bars, strip.log);
  const float foot = of_rows ? f.high.x + t.px(2) : f.low.y - t.px(2);
  const float length = (of_rows ? f.strip_width : f.strip_height) - t.px(4);
  const ImU32 color = faded(t.series[0], 0.8F);
  for (int p = 0; p < pixels; ++p) {
    const float v = bars.magnitudes[p];
    if (!(v > 0)) continue;
    const float size = length * std::clamp(scale.place(v), 0.0F, 1.0F);
    const auto at = static_cast<float>(p);
    if (of_rows)
      f.list->AddRectFilled({foot, f.low.y + at}, {foot + size, f.low.y + at + 1}, color);
    else
      f.list->AddRectFilled({f.low.x + at, foot - size}, {f.low.x + at + 1, foot}, color);
  }

  if (!hit.strip || hit.strip->of_rows != of_rows) return;
  const Index entry = (hit.strip->cell - known.first) / known.step;
  if (hit.strip->cell < known.first || entry >= std::ssize(known.values)) return;
  const float value = known.values[entry];
  if (std::isnan(value)) return;
  hit.strip->value = value;
  hit.strip->covers = known.step;
}

void HeatmapView::take_strip_mouse(const Frame& f, bool of_rows, HeatmapHit& hit) {
  const ImGuiIO& io = ImGui::GetIO();
  const ImVec2 low = of_rows ? ImVec2{f.high.x + 1, f.low.y} : ImVec2{f.low.x, f.low.y - f.strip_height};
  const ImVec2 high = of_rows ? ImVec2{f.high.x + f.strip_width, f.high.y} : ImVec2{f.high.x, f.low.y - 1};
  ImGui::SetCursorScreenPos(low);
  ImGui::InvisibleButton(of_rows ? "row strip" : "column strip", {high.x - low.x, high.y - low.y});
  if (!ImGui::IsItemHovered()) return;
  const double px = io.MousePos.x - f.low.x, py = io.MousePos.y - f.low.y;
  if (io.MouseWheel != 0) {
    const double factor = std::pow(1.25, static_cast<double>(io.MouseWheel));
    const Camera before = image_.camera;
    image_.camera = zoomed(before, image_.size, image_.width, image_.height, px, py, of_rows ? 1 : factor,
                           of_rows ? factor : 1);
    if (!(image_.camera == before)) {
      hit.view_changed = true;
      fitted_ = false;
    }
  }
  const double cell = std::floor(of_rows ? image_.camera.y.cell_at(py) : image_.camera.x.cell_at(px));
  if (cell < 0 || cell >= static_cast<double>(of_rows ? image_.size.rows : image_.size.columns)) return;
  hit.strip = StripHit{
      of_rows,
      static_cast<Index>(cell),
      {},
      1,
      ImGui::IsMouseReleased(ImGuiMouseButton_Left) && io.MouseDragMaxDistanceSqr[ImGuiMouseButton_Left] < 9};
}

}  // namespace kvreplay::viewer
