#include "analysis/report/figure.hpp"

#include "analysis/report/assets.hpp"
#include "analysis/report/text.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay::report {

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

std::string data_html(const std::string& json) {
  return fmt::format("<script type=\"application/json\">{}</script>", script_safe(json));
}

std::string Variants::next_id() const { return fmt::format("{}-{}", name_, all_.size()); }

Figure Variants::figure(const std::vector<std::string>& labels) const {
  Figure figure;
  figure.name = name_;
  figure.files = files_;
  std::vector<Pick> picks;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    Pick pick{labels[i], {}};
    for (const Variant& variant : all_)
      if (std::find(pick.options.begin(), pick.options.end(), variant.picked[i]) == pick.options.end())
        pick.options.push_back(variant.picked[i]);
    picks.push_back(std::move(pick));
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

}  // namespace kvreplay::report
