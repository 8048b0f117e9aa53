#include "viewer/widgets/heatmap_view.hpp"

#include "viewer/gl/heatmap_renderer.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace kvreplay::viewer {
namespace {

/// Tiles kept besides those in view, for quick returns: 256 KiB each.
constexpr std::size_t kTilesKept = 192;
/// Sizes of axes, strips and the colour bar, in points.
constexpr float kBarWidth = 12, kGap = 8, kStrip = 30;
/// A map that a strip leaves less of, in points, is shown without it.
constexpr float kLeastMap = 110;

/// The tile made of its four children where all are at hand: zooming out shows at once what was there
/// already.
std::shared_ptr<const Tile> from_children(const TileMap& tiles, MatrixSize size, const TileKey& key) {
  if (key.level == 0) return nullptr;
  std::array<std::array<const Tile*, 2>, 2> children{};
  for (Index r = 0; r < 2; ++r)
    for (Index c = 0; c < 2; ++c) {
      const TileKey child{key.level - 1, 2 * key.row + r, 2 * key.column + c};
      const MatrixSize extent = tile_extent(size, child);
      if (extent.rows == 0 || extent.columns == 0) continue;
      const auto found = tiles.find(child);
      if (found == tiles.end()) return nullptr;
      children[r][c] = found->second.get();
    }
  return std::make_shared<const Tile>(tile_of_children(size, key, children));
}

using Programs = std::map<const ImGuiContext*, std::weak_ptr<const HeatmapProgram>>;
Programs& programs() {
  static Programs all;
  std::erase_if(all, [](const auto& item) { return item.second.expired(); });
  return all;
}

/// One shader serves all views of a host; it goes with the last of them, while its context is still there.
std::shared_ptr<const HeatmapProgram> shared_program() {
  std::weak_ptr<const HeatmapProgram>& program = programs()[ImGui::GetCurrentContext()];
  std::shared_ptr<const HeatmapProgram> held = program.lock();
  if (!held) program = held = std::make_shared<const HeatmapProgram>();
  return held;
}

}  // namespace

void use_heatmap_program(const std::shared_ptr<const HeatmapProgram>& program) {
  programs()[ImGui::GetCurrentContext()] = program;
}

HeatmapView::HeatmapView() = default;
HeatmapView::~HeatmapView() = default;

void HeatmapView::take_tiles(const HeatmapContent& content) {
  if (key_ != content.key) {
    key_ = content.key;
    tiles_.clear();
    known_ = {};
  }
  const std::vector<TileKey> wanted = visible_tiles(image_.camera, content.size, image_.width, image_.height);
  complete_ = true;
  bool children_used = false;
  for (const TileKey& key : wanted) {
    Answer<Tile> answer = content.tile(key);
    if (answer) {
      tiles_[key] = answer.value;
      continue;
    }
    if (!tiles_.contains(key) && !children_used) {
      if (auto made = from_children(tiles_, content.size, key)) {
        tiles_[key] = std::move(made);
        children_used = true;  // one a frame: pooling costs a millisecond
      }
    }
    complete_ = false;
  }
  for (const auto& [key, tile] : tiles_) known_.merge(tile->stats);
  if (tiles_.size() > kTilesKept + wanted.size())
    std::erase_if(tiles_, [&](const auto& item) {
      return item.first.level + 4 < top_level(content.size) &&
             std::find(wanted.begin(), wanted.end(), item.first) == wanted.end();
    });
}

HeatmapView::Frame HeatmapView::arrange(ImVec2 size, const HeatmapContent& content) const {
  const Theme& t = theme();
  Frame f;
  f.origin = ImGui::GetCursorScreenPos();
  f.size = {std::max(size.x, t.px(120)), std::max(size.y, t.px(90))};
  f.list = ImGui::GetWindowDrawList();
  const float line = ImGui::GetTextLineHeight();
  const float top = line + t.px(6), bottom = line + t.px(8),
              right = t.px(kBarWidth + kGap) + bar_labels(f.size.y);
  const float left = row_labels(content);
  if (content.column_strip && f.size.y - top - bottom >= t.px(kStrip + kLeastMap))
    f.strip_height = t.px(kStrip);
  if (content.row_strip && f.size.x - left - right >= t.px(kStrip + kLeastMap)) f.strip_width = t.px(kStrip);
  make_room_for_text(f, content);
  f.low = {std::floor(f.origin.x + left + f.row_text), std::floor(f.origin.y + top + f.strip_height)};
  f.high = {std::floor(f.origin.x + f.size.x - right - f.strip_width),
            std::floor(f.origin.y + f.size.y - bottom - (f.upright ? 0 : f.column_text))};
  f.high.x = std::max(f.high.x, f.low.x + t.px(24));
  f.high.y = std::max(f.high.y, f.low.y + t.px(24));
  f.bar_low = {f.high.x + f.strip_width + t.px(kGap), f.low.y};
  f.bar_high = {f.bar_low.x + t.px(kBarWidth), f.high.y};
  return f;
}

/// The camera for a map of this size: as it was, or as the view that it is joined with has it.
void HeatmapView::place_camera(int width, int height, const HeatmapContent& content, HeatmapLinks& links) {
  const bool drawn_before = image_.width > 0;
  if (drawn_before && image_.size != content.size) fitted_ = true;  // another matrix
  if (fitted_)
    image_.camera = fitted(content.size, width, height, content.square);
  else if (!drawn_before)
    image_.camera = clamped(image_.camera, content.size, width, height);
  else if (image_.width != width || image_.height != height)
    image_.camera =
        resized(image_.camera, content.size, image_.width, image_.height, width, height, content.square);
  image_.size = content.size;
  image_.width = width;
  image_.height = height;
  if (!links.joined || content.link.empty()) {
    moved_ = false;
    return;
  }
  const auto shared = links.columns.find(content.link);
  if (!moved_ && shared != links.columns.end()) {
    const double cells = shared->second.axis.cells_per_pixel * shared->second.pixels;
    image_.camera.x = {shared->second.axis.start, cells / width};
    image_.camera = clamped(image_.camera, content.size, width, height);
    fitted_ = false;
  }
}

HeatmapHit HeatmapView::draw(const char* id, ImVec2 size, const HeatmapContent& content,
                             HeatmapLinks& links) {
  HeatmapHit hit;
  ImGui::PushID(id);
  const Frame frame = arrange(size, content);
  if (content.size.rows < 1 || content.size.columns < 1) {
    const ImVec2 extent = ImGui::CalcTextSize(content.hint.c_str(), nullptr, false, frame.size.x * 0.8F);
    ImGui::SetCursorScreenPos(
        {frame.origin.x + (frame.size.x - extent.x) / 2, frame.origin.y + (frame.size.y - extent.y) / 2});
    wrapped_text(content.hint, theme().dim, extent.x + 1);
    ImGui::SetCursorScreenPos({frame.origin.x, frame.origin.y + frame.size.y});
    ImGui::PopID();
    return hit;
  }

  const int width = static_cast<int>(frame.high.x - frame.low.x);
  const int height = static_cast<int>(frame.high.y - frame.low.y);
  place_camera(width, height, content, links);
  const float text_room = frame.row_text + (frame.upright ? 0 : frame.column_text);
  if (std::exchange(text_room_, text_room) != text_room) links.unfinished = true;
  map_low_ = frame.low;
  map_high_ = frame.high;
  ImGui::SetCursorScreenPos(frame.low);
  ImGui::InvisibleButton("map", {frame.high.x - frame.low.x, frame.high.y - frame.low.y},
                         ImGuiButtonFlags_MouseButtonLeft | ImGuiButtonFlags_MouseButtonRight |
                             ImGuiButtonFlags_MouseButtonMiddle);
  take_mouse(frame, content, hit);
  if (frame.strip_height > 0) take_strip_mouse(frame, false, hit);
  if (frame.strip_width > 0) take_strip_mouse(frame, true, hit);
  moved_ |= hit.view_changed;
  if (moved_ && links.joined && !content.link.empty())
    links.columns[content.link] = {image_.camera.x, image_.width};
  moved_ = false;
  take_tiles(content);
  choose_scale(content, links);
  image_.ink = theme().ink;
  image_.ink.mark_beyond = mark_beyond_;
  image_.faded_columns = content.faded_columns;

  if (!renderer_) renderer_ = std::make_unique<HeatmapRenderer>(shared_program());
  if (renderer_->draw(image_, tiles_)) links.unfinished = true;
  // ImGui's OpenGL backend knows textures by their number. NOLINTNEXTLINE(performance-no-int-to-ptr)
  const auto picture = reinterpret_cast<ImTextureID>(static_cast<std::intptr_t>(renderer_->texture()));
  frame.list->AddImage(picture, frame.low, frame.high);
  frame.list->AddRect({frame.low.x - 1, frame.low.y - 1}, {frame.high.x + 1, frame.high.y + 1},
                      theme().border);
  if (hit.hovered) read_value(hit);
  draw_cells(frame);
  draw_marks(frame, content);
  draw_axes(frame, content);
  if (frame.strip_height > 0) draw_strip(frame, *content.column_strip, false, hit);
  if (frame.strip_width > 0) draw_strip(frame, *content.row_strip, true, hit);
  draw_bar(frame, content, links);

  ImGui::SetCursorScreenPos({frame.origin.x, frame.origin.y + frame.size.y});
  ImGui::PopID();
  return hit;
}

void HeatmapView::take_mouse(const Frame& frame, const HeatmapContent& content, HeatmapHit& hit) {
  const ImGuiIO& io = ImGui::GetIO();
  const bool active = ImGui::IsItemActive();
  hit.hovered = ImGui::IsItemHovered();
  const double px = io.MousePos.x - frame.low.x, py = io.MousePos.y - frame.low.y;
  const Camera before = image_.camera;
  const int width = image_.width, height = image_.height;
  if (hit.hovered && io.MouseWheel != 0) {
    const double factor = std::pow(1.25, static_cast<double>(io.MouseWheel));
    image_.camera = zoomed(image_.camera, content.size, width, height, px, py, io.KeyCtrl ? 1 : factor,
                           io.KeyShift ? 1 : factor);
  }
  const bool choosing = io.KeyShift || drag_from_;
  if (active && !choosing &&
      (ImGui::IsMouseDragging(ImGuiMouseButton_Left, 3) ||
       ImGui::IsMouseDragging(ImGuiMouseButton_Middle, 1)))
    image_.camera = panned(image_.camera, content.size, width, height, io.MouseDelta.x, io.MouseDelta.y);
  if (!(image_.camera == before)) {
    hit.view_changed = true;
    fitted_ = false;
  }
  if (hit.hovered && ImGui::IsMouseDoubleClicked(ImGuiMouseButton_Left)) {
    fitted_ = true;
    image_.camera = fitted(content.size, width, height, content.square);
    hit.view_changed = true;
  }

  const double row = std::floor(image_.camera.y.cell_at(py)),
               column = std::floor(image_.camera.x.cell_at(px));
  const auto inside = [](double at, Index cells) { return at >= 0 && at < static_cast<double>(cells); };
  if (drag_from_ && !ImGui::IsMouseDown(ImGuiMouseButton_Left)) drag_from_.reset();
  if (active && io.KeyShift && ImGui::IsMouseClicked(ImGuiMouseButton_Left) &&
      inside(column, content.size.columns))
    drag_from_ = static_cast<Index>(column);
  if (drag_from_) {
    const Index to =
        static_cast<Index>(std::clamp(column, 0.0, static_cast<double>(content.size.columns - 1)));
    hit.columns_chosen = {std::min(*drag_from_, to), std::max(*drag_from_, to) + 1};
  }
  if (!hit.hovered || !inside(row, content.size.rows) || !inside(column, content.size.columns)) {
    hit.hovered = false;
    return;
  }
  hit.row = static_cast<Index>(row);
  hit.column = static_cast<Index>(column);
  hit.clicked = !io.KeyShift && ImGui::IsMouseReleased(ImGuiMouseButton_Left) &&
                io.MouseDragMaxDistanceSqr[ImGuiMouseButton_Left] < 9;
}

void HeatmapView::read_value(HeatmapHit& hit) const {
  const int level = drawn_level(image_.camera, image_.size);
  const Index r = hit.row >> level, c = hit.column >> level;
  const auto found = find_tile(tiles_, {level, r >> kTileBits, c >> kTileBits}, image_.size);
  if (!found) return;
  const Tile& tile = *tiles_.at(found->key);
  const Index at_row = (r >> found->shift) & (kTileSize - 1),
              at_column = (c >> found->shift) & (kTileSize - 1);
  hit.value = tile.values[at_row * tile.columns + at_column];
  hit.single_cell = found->key.level == 0;
}

void HeatmapView::fit() {
  fitted_ = true;
  moved_ = true;
}

void HeatmapView::one_to_one() {
  moved_ = true;
  fitted_ = false;
  image_.camera = viewer::one_to_one(image_.camera, image_.size, image_.width, image_.height);
}

void HeatmapView::zoom(double factor) {
  moved_ = true;
  fitted_ = false;
  image_.camera = zoomed(image_.camera, image_.size, image_.width, image_.height, image_.width / 2.0,
                         image_.height / 2.0, factor, factor);
}

void HeatmapView::show(Index row, Index column) {
  if (fitted_ || image_.width == 0) return;
  moved_ = true;
  image_.camera = showing(image_.camera, image_.size, image_.width, image_.height, row, column);
}

std::optional<Camera> HeatmapView::camera() const {
  return fitted_ ? std::optional<Camera>() : image_.camera;
}

void HeatmapView::set_view(const View& view) {
  image_.camera = view.camera;
  image_.size = view.size;
  image_.width = view.width;
  image_.height = view.height;
  fitted_ = view.fitted;
}

void HeatmapView::set_camera(const std::optional<Camera>& camera) {
  moved_ = true;
  fitted_ = !camera;
  if (camera) image_.camera = *camera;
}

}  // namespace kvreplay::viewer
