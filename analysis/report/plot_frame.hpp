#pragma once

#include "analysis/drawing/axis.hpp"

#include <string>
#include <string_view>

namespace kvreplay::report {

/// A coordinate, to a tenth of a pixel.
std::string px(double value);
/// Approximate width of a text in the plots' font, pixels.
double text_width(std::string_view text);
/// At most `most` characters, the end cut off by an ellipsis. Not escaped.
std::string shortened(const std::string& text, std::size_t most);

/// One picture as it is written. Texts are escaped here; attributes are not. All styles are classes of
/// figure.css.
class Svg {
 public:
  /// `id` is unique in the page; `title` is the text for screen readers.
  Svg(std::string id, double width, double height, std::string_view title);

  const std::string& id() const { return id_; }
  /// `hover`: the page's text for the mouse over this rectangle.
  void rect(double x, double y, double width, double height, std::string_view attributes,
            std::string_view hover = {});
  void line(double x1, double y1, double x2, double y2, std::string_view css_class);
  /// `anchor`: start, middle or end.
  void text(double x, double y, std::string_view anchor, std::string_view text,
            std::string_view css_class = {}, std::string_view attributes = {});
  void raw(std::string_view markup) { body_ += markup; }
  /// The markup drawn so far, without the enclosing element.
  const std::string& drawn() const { return body_; }
  std::string finish() const;

 private:
  std::string id_, title_, body_;
  double width_, height_;
};

/// The rectangle that a plot's values fill, pixels.
struct PlotFrame {
  double left = 62, top = 14, width = 380, height = 300;

  double x(double share) const { return left + width * share; }
  double y(double share) const { return top + height * (1 - share); }
};

/// Grid, ticks and label of one axis.
void draw_x_axis(Svg& svg, const PlotFrame& frame, const Axis& axis);
void draw_y_axis(Svg& svg, const PlotFrame& frame, const Axis& axis);
/// The frame as JSON, for the page's script to place and read values.
std::string frame_json(const PlotFrame& frame);

}  // namespace kvreplay::report
