#include "analysis/drawing/color_scale.hpp"
#include "analysis/report/assets.hpp"
#include "analysis/report/figure.hpp"
#include "analysis/report/text.hpp"

#include <fmt/format.h>

namespace kvreplay::report {
namespace {

constexpr int kTableColors = 128;
constexpr std::size_t kShownRemarks = 3;

std::string colors_json() {
  const auto table = [](bool diverging) {
    std::string colors;
    for (int i = 0; i < kTableColors; ++i) {
      const double t = static_cast<double>(i) / (kTableColors - 1);
      colors += fmt::format("{}\"{}\"", i == 0 ? "" : ",",
                            hex(diverging ? diverging_color(2 * t - 1) : sequential_color(t)));
    }
    return colors;
  };
  return fmt::format(R"({{"sequential":[{}],"diverging":[{}]}})", table(false), table(true));
}

/// Meanings of the metrics that the lists offer, folded away.
std::string meanings_html(const std::vector<const FigureFacts*>& figures) {
  std::string items;
  for (const FigureFacts* const facts : figures)
    items += fmt::format("<li><b>{}</b>{}</li>", escaped(std::string(facts->name)),
                         escaped(meaning_of(*facts, ": ", "; ")));
  return fmt::format(
      " <details class=\"meanings\"><summary>What the figures say</summary><ul>{}</ul></details>", items);
}

std::string figure_html(const Figure& figure, const std::string& folder) {
  std::string links;
  for (const FigureFile& file : figure.files)
    links += fmt::format("<a href=\"{}/{}\">{}</a>", escaped(folder), escaped(file.name),
                         file.name.ends_with(".csv")   ? "CSV"
                         : file.name.ends_with(".svg") ? "SVG"
                                                       : "PNG");
  std::string html = fmt::format("<figure id=\"{0}\"><h3>{1}</h3>{2}<figcaption>{3}", escaped(figure.name),
                                 escaped(figure.heading), figure.body, escaped(figure.reading));
  if (!figure.shows.empty()) html += meanings_html(figure.shows);
  if (!figure.note.empty()) html += fmt::format(" <span class=\"note\">{}</span>", escaped(figure.note));
  if (const std::string_view panel = panel_of_figure(figure.name); !panel.empty())
    links += fmt::format(
        "<button type=\"button\" data-panel=\"{}\" hidden=\"\">Open in the dashboard</button>"
        "<code class=\"command\" hidden=\"\"></code>",
        panel);
  if (!links.empty()) html += fmt::format("<span class=\"files\">{}</span>", links);
  return html + "</figcaption></figure>\n";
}

std::string section_html(const Section& section, const std::string& folder) {
  std::string html =
      fmt::format("<section id=\"{}\"><h2>{}</h2>\n", escaped(section.id), escaped(section.heading));
  if (!section.missing.empty())
    html += fmt::format("<p class=\"missing\">{}</p>\n", escaped(section.missing));
  if (!section.findings.empty()) {
    html += "<ul class=\"findings\">";
    for (const std::string& line : section.findings) html += fmt::format("<li>{}</li>", escaped(line));
    html += "</ul>\n";
  }
  if (!section.figures.empty()) {
    html += "<div class=\"figures\">\n";
    for (const Figure& figure : section.figures) html += figure_html(figure, folder);
    html += "</div>\n";
  }
  return html + section.html + "</section>\n";
}

/// The first few; a first screen is for figures.
std::string remarks_html(const std::vector<std::string>& remarks) {
  if (remarks.empty()) return "";
  const auto list = [&](std::size_t from, std::size_t to) {
    std::string items;
    for (std::size_t i = from; i < to; ++i) items += fmt::format("<li>{}</li>", escaped(remarks[i]));
    return fmt::format("<ul class=\"remarks\">{}</ul>\n", items);
  };
  const std::size_t first = remarks.size() > kShownRemarks + 1 ? kShownRemarks : remarks.size();
  std::string html = list(0, first);
  if (first < remarks.size())
    html += fmt::format("<details class=\"remarks\"><summary>{} more notes</summary>{}</details>\n",
                        remarks.size() - first, list(first, remarks.size()));
  return html;
}

std::string findings_html(const std::vector<LinkedSentence>& findings) {
  if (findings.empty()) return "";
  std::string items;
  for (const LinkedSentence& one : findings) {
    std::string place;
    if (one.head) {
      std::string picked;
      for (const auto& [label, option] : one.picked)
        picked += fmt::format("{}{}:{}", picked.empty() ? "" : ",", json_string(label), json_string(option));
      place = fmt::format(" data-head=\"{}.{}\" data-picked='{{{}}}'", one.head->first, one.head->second,
                          attribute_safe(picked));
      if (one.token) place += fmt::format(" data-token=\"{}\"", *one.token);
    }
    items +=
        fmt::format("<li>{} <a href=\"#{}\"{}>Where</a></li>", escaped(one.text), escaped(one.id), place);
  }
  return fmt::format("<div class=\"worth\"><b>Worth knowing</b><ul>{}</ul></div>\n", items);
}

std::string header_html(const Page& page) {
  std::string html = fmt::format("<header><h1>{}</h1>\n<p class=\"lead\">{}</p>\n{}<dl class=\"facts\">",
                                 escaped(page.title), escaped(page.lead), findings_html(page.findings));
  for (const auto& [name, value] : page.facts)
    html += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>", escaped(name), escaped(value));
  html += "</dl>\n";
  html += remarks_html(page.remarks);
  html += "<nav>";
  for (const Section& section : page.sections)
    html += fmt::format("<a href=\"#{}\">{}</a>", escaped(section.id), escaped(section.heading));
  return html + "</nav></header>\n";
}

}  // namespace

std::string_view panel_of_figure(std::string_view name) {
  using Row = std::pair<std::string_view, std::string_view>;
  static constexpr Row rows[] = {{"scores", "heads"},
                                 {"head-map", "heads"},
                                 {"error-by-layer", "heads"},
                                 {"compensation-by-layer", "heads"},
                                 {"recall", "curves"},
                                 {"scatter", "scatter"},
                                 {"policies", "what-if"},
                                 {"error-by-budget", "what-if"},
                                 {"error-by-bytes", "what-if"},
                                 {"key-costs", "channels"},
                                 {"methods", "what-if"},
                                 {"compensation-by-budget", "what-if"},
                                 {"error-split", "what-if"},
                                 {"decode", "decode"},
                                 {"shares", "budgets"},
                                 {"loss-by-sigma", "budgets"},
                                 {"shared-budget", "budgets"},
                                 {"loss-curves", "budgets"},
                                 {"pruning", "channels"},
                                 {"error-by-ratio", "channels"},
                                 {"interaction", "channels"},
                                 {"text", "text"},
                                 {"budget-by-layer", "budgets"},
                                 {"allocation", "budgets"},
                                 {"selection-by-layer", "channels"},
                                 {"query-channels", "channels"}};
  for (const auto& [figure, panel] : rows)
    if (figure == name) return panel;
  return name.starts_with("measured-") ? "validation" : "";
}

namespace {

/// All of it but what makes it answer to the mouse, which is `scripts`.
std::string document(const Page& page, const std::string& figure_folder, const std::string& results,
                     const std::string& scripts) {
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<meta name=\"color-scheme\" content=\"light "
      "dark\"/>\n<title>{}</title>\n<style>\n{}{}{}</style>\n</head>\n"
      "<body{}>\n{}<main>\n",
      escaped(page.title), figure_css(), report_css(), prompt_css(),
      page.results.empty() ? std::string()
                           : fmt::format(" data-results=\"{}\" data-heads=\"{}\" data-tokens=\"{}\"",
                                         escaped(results), page.kv_heads, page.tokens),
      header_html(page));
  for (const Section& section : page.sections) html += section_html(section, figure_folder);
  return html + "</main>\n" + scripts + "</body>\n</html>\n";
}

}  // namespace

std::string html_of(const Page& page, const std::string& figure_folder, const std::string& results) {
  return document(
      page, figure_folder, results,
      fmt::format("<div id=\"tip\" role=\"status\" hidden=\"\"></div>\n"
                  "<script type=\"application/json\" id=\"colors\">{}</script>\n<script>\n{}{}{}</script>\n",
                  colors_json(), report_js(), prompt_js(), state_js()));
}

std::string still_html_of(const Page& page) { return document(page, "", "", ""); }

}  // namespace kvreplay::report
