#pragma once

#include "viewer/model/value_scale.hpp"

#include <imgui.h>
#include <span>
#include <string>

// Curves and points on linear or logarithmic axes.

namespace kvreplay::viewer {

struct PlotAxis {
  std::string title;  ///< empty: no line is left for it
  bool log = false;
  double low = 0, high = 1;  ///< range of the axis while not zoomed
  bool ranks = false;        ///< it counts ranks: 1 lies right, or at the top
};

/// Zoomed ranges of a plot; not zoomed: everything is shown.
struct PlotView {
  bool zoomed = false;
  double x_low = 0, x_high = 1, y_low = 0, y_high = 1;
};

/// One plot in one frame: the constructor draws frame, grid and labels and takes the mouse (wheel zooms at
/// the cursor, drag pans, double click shows all); what is drawn until the end is clipped to it.
class Plot {
 public:
  /// `size` in pixels. Where `keep_left_drag`, the left button is the caller's (a lasso).
  Plot(const char* id, ImVec2 size, const PlotAxis& x, const PlotAxis& y, PlotView& view,
       bool keep_left_drag = false);
  ~Plot();
  Plot(const Plot&) = delete;
  Plot& operator=(const Plot&) = delete;

  /// Pixels of a point; what a logarithm cannot show lies at the axis' low end.
  ImVec2 at(double x, double y) const;
  double x_of(float pixel) const;
  double y_of(float pixel) const;
  ImVec2 low_corner() const { return area_low_; }
  ImVec2 high_corner() const { return area_high_; }
  bool hovered() const { return hovered_; }
  ImDrawList* list() const { return list_; }

  /// A line through the points in order; NaN breaks it.
  void line(std::span<const double> x, std::span<const double> y, ImU32 color, float thickness = 1.6F);
  void vertical(double x, ImU32 color, float thickness = 1.0F);
  void horizontal(double y, ImU32 color, float thickness = 1.0F);
  /// A vertical line that can be dragged; true while it moves `x`, which stays within the axis.
  bool drag_vertical(const char* id, double& x, ImU32 color);
  /// A small text at a corner or beside a point.
  void label(ImVec2 pixel, const char* text, ImU32 color);

 private:
  static float turned(float t, bool ranks) { return ranks ? 1 - t : t; }

  ValueScale x_, y_;
  bool x_ranks_, y_ranks_;
  ImVec2 area_low_, area_high_;
  ImDrawList* list_;
  bool hovered_ = false;
};

}  // namespace kvreplay::viewer
