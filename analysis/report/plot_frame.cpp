#include "analysis/report/plot_frame.hpp"

#include "analysis/report/text.hpp"
#include "data/utf8.hpp"

#include <fmt/format.h>

namespace kvreplay::report {
namespace {

/// Where the page is narrower, pictures shrink to this width and then scroll.
constexpr int kLeastWidth = 440;

std::string on_one_line(const std::string& text) {
  std::string line;
  for (const char c : text) c == '\n' ? line += "&#10;" : line += c;
  return line;
}

}  // namespace

std::string px(double value) {
  std::string text = fmt::format("{:.1f}", value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text == "-0" ? "0" : text;
}

double text_width(std::string_view text) {
  double width = 0;
  for (const char c : text) {
    if (continues_character(c)) continue;
    width += c == 'i' || c == 'l' || c == '.' || c == ',' || c == ' ' ? 4 : c == 'm' || c == 'w' ? 10.5 : 7.3;
  }
  return width;
}

std::string shortened(const std::string& text, std::size_t most) {
  if (text.size() <= most) return text;
  std::size_t end = most - 1;
  while (end > 0 && continues_character(text[end])) --end;
  return text.substr(0, end) + "\xE2\x80\xA6";
}

Svg::Svg(std::string id, double width, double height, std::string_view title)
    : id_(std::move(id)), title_(escaped(title)), width_(width), height_(height) {}

void Svg::rect(double x, double y, double width, double height, std::string_view attributes,
               std::string_view hover) {
  body_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" {}", px(x), px(y), px(width),
                       px(height), attributes);
  // Lines of an attribute's value would be joined by who reads it as XML.
  if (!hover.empty()) body_ += fmt::format(" data-tip=\"{}\"", on_one_line(escaped(hover)));
  body_ += "/>";
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view css_class) {
  body_ += fmt::format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" class=\"{}\"/>", px(x1), px(y1), px(x2),
                       px(y2), css_class);
}

void Svg::text(double x, double y, std::string_view anchor, std::string_view text, std::string_view css_class,
               std::string_view attributes) {
  body_ += fmt::format("<text x=\"{}\" y=\"{}\"", px(x), px(y));
  if (anchor != "start") body_ += fmt::format(" text-anchor=\"{}\"", anchor);
  if (!css_class.empty()) body_ += fmt::format(" class=\"{}\"", css_class);
  if (!attributes.empty()) body_ += fmt::format(" {}", attributes);
  body_ += fmt::format(">{}</text>", escaped(text));
}

std::string Svg::finish() const {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"figure\" role=\"img\" width=\"{0}\" height=\"{1}\" "
      "style=\"min-width:min({0}px,{3}px)\" viewBox=\"0 0 {0} {1}\" aria-label=\"{2}\"><g>{4}</g></svg>",
      px(width_), px(height_), on_one_line(title_), kLeastWidth, body_);
}

void draw_x_axis(Svg& svg, const PlotFrame& frame, const Axis& axis) {
  const double bottom = frame.top + frame.height;
  for (const AxisTick& tick : axis.ticks()) {
    svg.line(frame.x(tick.at), frame.top, frame.x(tick.at), bottom, "grid");
    svg.text(frame.x(tick.at), bottom + 16, "middle", tick.text);
  }
  svg.text(frame.left + frame.width / 2, bottom + 34, "middle", axis.label, "label");
}

void draw_y_axis(Svg& svg, const PlotFrame& frame, const Axis& axis) {
  for (const AxisTick& tick : axis.ticks()) {
    svg.line(frame.left, frame.y(tick.at), frame.left + frame.width, frame.y(tick.at), "grid");
    svg.text(frame.left - 6, frame.y(tick.at) + 4, "end", tick.text);
  }
  const double middle = frame.top + frame.height / 2;
  svg.text(13, middle, "middle", axis.label, "label",
           fmt::format("transform=\"rotate(-90 13 {})\"", px(middle)));
}

std::string frame_json(const PlotFrame& frame) {
  return fmt::format(R"({{"left":{},"top":{},"width":{},"height":{}}})", px(frame.left), px(frame.top),
                     px(frame.width), px(frame.height));
}

}  // namespace kvreplay::report
