#pragma once

#include "viewer/model/heatmap_image.hpp"
#include "viewer/model/value_scale.hpp"
#include "viewer/questions/job_queue.hpp"

#include <nlohmann/json.hpp>

#include <functional>
#include <imgui.h>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

// A matrix to zoom and pan in, tile by tile, with axes, marginal strips and a colour bar.

namespace kvreplay::viewer {

class HeatmapProgram;
class HeatmapRenderer;

/// Known values of the visible part of a strip: values[i] covers the cells [first + i * step, first + (i + 1)
/// * step) of the axis. NaN: unknown or undefined.
struct StripValues {
  Index first = 0, step = 1;
  std::vector<float> values;
};
/// Bars along an axis, as long as the magnitude of the largest of the cells that they cover.
struct Strip {
  std::string name;  ///< name of the value: "largest weight"
  /// Called for the cells [begin, end) in view, of which so many share a pixel.
  std::function<StripValues(Index begin, Index end, double cells_per_pixel)> values;
  bool log = false;
};

enum class BadEnd { neither, low, high };

/// Content of a heatmap in this frame.
struct HeatmapContent {
  Key key;  ///< says all that the values depend on
  MatrixSize size;
  /// The tile or what is known of it; called for tiles in view. `value` without `pending` is final.
  std::function<Answer<Tile>(const TileKey&)> tile;
  std::string quantity;  ///< "exact_remove"
  std::string unit;      ///< "squared output"; empty: a plain number
  // Unless chosen otherwise:
  bool is_signed = false;  ///< diverging colours around 0
  ScaleKind scale = ScaleKind::linear;
  /// A log range ends at this share of its highest value: values below have the lowest colour. 0: it does
  /// not.
  float log_depth = 0;
  /// The worse end of the scale, which is bright. Neither: the colour map is not reversed.
  BadEnd bad = BadEnd::neither;
  std::string low_word, high_word;  ///< meaning of the ends, in a word or two each: "better", "worse"
  RangeChoice range;
  bool square = false;  ///< both axes to one scale
  std::string row_name, column_name;
  bool numbered = true;                                         ///< its axes have numbers
  Index first_row = 0, first_column = 0;                        ///< numbers of row and column 0
  std::function<std::string(Index)> row_number, column_number;  ///< label in place of a number
  std::function<std::string(Index)> column_text, row_text;      ///< beside the number where there is room
  std::vector<std::uint8_t> faded_columns;
  std::vector<Index> selected_columns;         ///< ascending: marked at the axis
  std::vector<Index> column_marks, row_marks;  ///< small ticks (pruned channels, rotation pairs)
  std::optional<Index> row, column;            ///< selected
  bool outline_cell = false;  ///< marks the cell that is selected, not its whole row and column
  std::optional<Index> hover_row, hover_column;  ///< where the mouse is in another panel
  std::optional<Strip> column_strip, row_strip;  ///< above and at the right of the map, where there is room
  Key link;          ///< heatmaps of one link share their columns' view where views are joined
  std::string hint;  ///< shown in place of an empty matrix
};

/// The cell of a strip that was under the mouse.
struct StripHit {
  bool of_rows = false;  ///< of the rows' strip, else of the columns'
  Index cell = 0;        ///< row or column
  std::optional<float> value;
  Index covers = 1;  ///< cells that the value stands for
  bool clicked = false;
};

/// Cell under the mouse, and the mouse's actions on it.
struct HeatmapHit {
  bool hovered = false;  ///< the map itself
  Index row = 0, column = 0;
  std::optional<float> value;  ///< of the cell, where a tile of single cells is at hand; else the texel's
  bool single_cell = false;    ///< `value` is the cell's own
  bool clicked = false;
  bool view_changed = false;
  std::optional<std::pair<Index, Index>> columns_chosen;  ///< [first, last) dragged with Shift
  std::optional<StripHit> strip;
};

/// For tests: what the views of the current ImGui context draw with from now on; the caller holds it.
void use_heatmap_program(const std::shared_ptr<const HeatmapProgram>& program);

class HeatmapView {
 public:
  HeatmapView();
  ~HeatmapView();

  /// Draws within `size` pixels from the cursor on.
  HeatmapHit draw(const char* id, ImVec2 size, const HeatmapContent& content, HeatmapLinks& links);

  void fit();
  void one_to_one();
  void zoom(double factor);
  void show(Index row, Index column);  ///< brings a cell into view
  /// Empty: the whole matrix.
  std::optional<Camera> camera() const;
  void set_camera(const std::optional<Camera>& camera);

  /// Visible part of the matrix and its size in pixels. A caller that draws the heatmap elsewhere in between
  /// restores it afterwards.
  struct View {
    Camera camera;
    MatrixSize size;
    int width = 0, height = 0;
    bool fitted = true;
  };
  View view() const { return {image_.camera, image_.size, image_.width, image_.height, fitted_}; }
  void set_view(const View& view);

  nlohmann::json save() const;
  void load(const nlohmann::json& json);

  /// Current colour scale, for the CSV and the legend.
  const ValueScale& scale() const { return image_.scale; }
  Coloring colors() const { return image_.colors; }
  const TileMap& tiles() const { return tiles_; }
  /// Area in which the map was last drawn, and position in it of a place given in cells; in pixels of the
  /// window.
  ImVec2 map_low() const { return map_low_; }
  ImVec2 map_high() const { return map_high_; }
  ImVec2 pixel_of(double row, double column) const {
    return {map_low_.x + static_cast<float>(image_.camera.x.pixel_of(column)),
            map_low_.y + static_cast<float>(image_.camera.y.pixel_of(row))};
  }

 private:
  /// Areas of this frame's parts, in pixels of the window.
  struct Frame {
    ImVec2 origin, size;  ///< all of it
    ImVec2 low, high;     ///< the map
    ImVec2 bar_low, bar_high;
    float strip_height = 0, strip_width = 0;
    float column_text = 0, row_text = 0;  ///< the longest that these may be along and across; 0: none
    bool upright = true;                  ///< columns' text; else it reads downwards
    ImDrawList* list = nullptr;
  };
  Frame arrange(ImVec2 size, const HeatmapContent& content) const;
  void make_room_for_text(Frame& frame, const HeatmapContent& content) const;
  void place_camera(int width, int height, const HeatmapContent& content, HeatmapLinks& links);
  void take_tiles(const HeatmapContent& content);
  void choose_scale(const HeatmapContent& content, HeatmapLinks& links);
  void draw_bar(const Frame& frame, const HeatmapContent& content, HeatmapLinks& links);
  void draw_range_popup(const HeatmapContent& content);
  void draw_histogram();
  void choose_range(RangeKind kind);
  /// True if the colour map is reversed by default.
  static bool reversed(const HeatmapContent& content);
  static std::string axes_caption(const HeatmapContent& content);
  static std::string row_label(const HeatmapContent& content, Index row);
  /// Pixels that the labels of rows take at the left, and those of the colour bar at the right.
  static float row_labels(const HeatmapContent& content);
  float bar_labels(float height) const;
  void draw_axes(const Frame& frame, const HeatmapContent& content) const;
  void draw_strip(const Frame& frame, const Strip& strip, bool of_rows, HeatmapHit& hit) const;
  void draw_cells(const Frame& frame) const;
  void draw_marks(const Frame& frame, const HeatmapContent& content) const;
  void take_mouse(const Frame& frame, const HeatmapContent& content, HeatmapHit& hit);
  void take_strip_mouse(const Frame& frame, bool of_rows, HeatmapHit& hit);
  void read_value(HeatmapHit& hit) const;

  // chosen by the user
  std::optional<ColorMap> colors_;  // empty: by the content's sign
  std::optional<bool> reversed_;    // empty: so that the worse end stands out
  std::optional<ScaleKind> scale_;  // empty: the content's
  RangeChoice range_;
  bool range_chosen_ = false;
  bool range_edited_ = false;  // since the last frame: ranges that are locked follow
  bool mark_beyond_ = false;
  bool fitted_ = true;
  bool moved_ = false;  // since the last frame, by hand or by an action: joined views follow

  HeatmapImage image_;  // as drawn last
  Key key_;
  TileMap tiles_;
  TileStats known_;
  bool complete_ = false;          // every tile in view is there, if only as a first look
  float text_room_ = 0;            // beside and below the map, for the text of rows and columns
  bool nothing_selected_ = false;  // though the range asks for it
  std::optional<Index> drag_from_;
  ImVec2 map_low_, map_high_;
  std::unique_ptr<HeatmapRenderer> renderer_;
};

}  // namespace kvreplay::viewer
