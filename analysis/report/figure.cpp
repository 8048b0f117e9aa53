#include "analysis/report/figure.hpp"

#include "analysis/report/assets.hpp"
#include "analysis/report/text.hpp"
#include "analysis/results/figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

namespace kvreplay::report {
Section section_of(const char* id, const char* heading, std::vector<std::optional<Figure>> figures,
                   const char* missing) {
  Section section{id, heading, "", {}, ""};
  for (auto& figure : figures)
    if (figure) section.figures.push_back(std::move(*figure));
  if (section.figures.empty()) section.missing = missing;
  return section;
}

std::string directions_text(std::span<const FigureFacts* const> figures) {
  std::vector<std::string_view> lower, higher;
  for (const FigureFacts* const facts : figures)
    if (facts->better != Better::neither)
      (facts->better == Better::smaller ? lower : higher).push_back(facts->name);
  const bool mostly_lower = lower.size() >= higher.size();
  const auto& others = mostly_lower ? higher : lower;
  std::string text = mostly_lower ? "Lower is better" : "Higher is better";
  if (!others.empty())
    text += fmt::format(" (of {} {})", fmt::join(others, ", "), mostly_lower ? "higher" : "lower");
  return text;
}

FigureFile svg_file(const std::string& stem, const std::string& svg) {
  const std::size_t inside = svg.find('>') + 1;
  return {stem + ".svg",
          fmt::format("{}<style>{}</style>{}\n", svg.substr(0, inside), figure_css(), svg.substr(inside))};
}

FigureFile csv_file(const std::string& stem, std::string csv) { return {stem + ".csv", std::move(csv)}; }

std::string picks_html(const std::vector<Pick>& picks) {
  std::string html = "<div class=\"picks\">";
  for (const Pick& pick : picks) {
    html +=
        fmt::format("<label{}>{} <select>", pick.options.size() < 2 ? " hidden" : "", escaped(pick.label));
    for (const std::string& option : pick.options)
      html += fmt::format("<option value=\"{0}\">{0}</option>", escaped(option));
    html += "</select></label>";
  }
  return html + "</div>";
}

void add_drawing(Figure& figure, const std::vector<Pick>& picks, std::string_view kind,
                 const std::string& svg, const std::string& json, std::string csv) {
  figure.body = fmt::format(
      "{}<div class=\"scroll\" data-kind=\"{}\">{}<script type=\"application/json\">{}</script></div>",
      picks_html(picks), kind, svg, script_safe(json));
  figure.files = {svg_file(figure.name, svg), csv_file(figure.name, std::move(csv))};
}

std::optional<Figure> Variants::figure(const std::vector<std::string>& labels, std::string heading,
                                       std::string reading, std::vector<const FigureFacts*> shows) const {
  if (all_.empty()) return std::nullopt;
  Figure figure{.name = name_,
                .heading = std::move(heading),
                .reading = std::move(reading),
                .shows = std::move(shows),
                .files = files_};
  std::vector<Pick> picks;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    Pick& pick = picks.emplace_back(Pick{labels[i], {}});
    for (const Variant& variant : all_) place_in(pick.options, variant.picked[i]);
  }
  if (all_.size() > 1) figure.body = picks_html(picks);
  for (std::size_t i = 0; i < all_.size(); ++i) {
    std::string key = "[";
    for (const std::string& option : all_[i].picked)
      key += fmt::format("{}{}", key.size() > 1 ? "," : "", json_string(option));
    figure.body += fmt::format("<div class=\"variant scroll\" data-picked='{}]'{}>{}</div>",
                               attribute_safe(key), i == 0 ? "" : " hidden", all_[i].html);
  }
  return figure;
}

ColorScale color_scale(FigureScale scale, std::span<const double> values) {
  if (scale == FigureScale::correlation) return {true, false, -1, 1, true};
  if (scale == FigureScale::share) return {false, false, 0, 1};
  double low = std::numeric_limits<double>::infinity(), high = -low, smallest = low;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    low = std::min(low, value), high = std::max(high, value);
    if (value > 0) smallest = std::min(smallest, value);
  }
  if (low > high) return {};
  if (low < 0 && high > 0) {
    const double limit = std::max(-low, high);
    return {true, false, -limit, limit};
  }
  if (low >= 0 && high > 30 * smallest) return {false, true, std::max(smallest, high * 1e-8), high};
  if (low == high && low >= 0) return {false, false, 0, high > 0 ? high : 1};
  if (low == high) return {false, false, low - 0.5, high + 0.5};
  return {false, false, low, high};
}

Axis figure_axis(std::string label, FigureScale scale, std::span<const double> values) {
  switch (scale) {
    case FigureScale::share:
      return {std::move(label), 0, 1, false};
    case FigureScale::correlation: {
      const Axis axis = linear_axis(std::move(label), values, false);
      return {axis.label, std::max(axis.low, -1.0), std::min(axis.high, 1.0), false};
    }
    case FigureScale::log:
      return log_axis(std::move(label), values);
    case FigureScale::linear:
    case FigureScale::signed_log:
    case FigureScale::gain:
      break;
  }
  return linear_axis(std::move(label), values, true);
}

}  // namespace kvreplay::report
