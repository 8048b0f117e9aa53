#include "analysis/report/figure.hpp"
#include "analysis/report/plots.hpp"
#include "analysis/report/report.hpp"
#include "analysis/report/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>

namespace kvreplay::report {
namespace {

/// Output of describe() as HTML, with a section for every heading.
class HtmlPage : public ComparisonPage {
 public:
  void heading(const std::string& text) override { parts.push_back({text, ""}); }
  void title(const std::string& text) override { add(fmt::format("<h3>{}</h3>\n", escaped(text))); }
  void line(const std::string& text) override { add(fmt::format("<p>{}</p>\n", escaped(text))); }
  void table(const Lines& lines) override {
    std::string html = "<div class=\"scroll\"><table class=\"numbers\"><thead>";
    for (std::size_t r = 0; r < lines.size(); ++r) {
      html += "<tr>";
      for (std::size_t c = 0; c < lines[r].size(); ++c) {
        const char* const tag = r == 0 || c == 0 ? "th" : "td";
        const char* const scope = r == 0 ? " scope=\"col\"" : c == 0 ? " scope=\"row\"" : "";
        html += fmt::format("<{0}{1}>{2}</{0}>", tag, scope, escaped(lines[r][c]));
      }
      html += r == 0 ? "</tr></thead><tbody>\n" : "</tr>\n";
    }
    add(html + "</tbody></table></div>\n");
  }

  struct Part {
    std::string heading, html;
  };
  std::vector<Part> parts;

 private:
  void add(const std::string& html) {
    if (!parts.empty()) parts.back().html += html;  // before the first heading: which the folders are
  }
};

/// Distance of two values in the plot: the logarithm of their ratio on a logarithmic axis, else their
/// difference. 0 if it is not finite.
double apart(const ComparedFigure& figure, FigureScale scale) {
  const double by =
      scale == FigureScale::log ? std::abs(std::log(figure.b / figure.a)) : std::abs(figure.b - figure.a);
  return std::isfinite(by) ? by : 0;
}

/// Settings, ordered by their largest distance of two values, the largest first.
std::vector<std::string> settings_of(const ComparedPivot& pivot) {
  std::vector<std::pair<std::string, double>> settings;
  for (const ComparedFigure& figure : pivot.figures) {
    auto at =
        std::ranges::find_if(settings, [&](const auto& setting) { return setting.first == figure.setting; });
    if (at == settings.end()) at = settings.insert(at, {figure.setting, 0.0});
    at->second = std::max(at->second, apart(figure, pivot.scale));
  }
  std::ranges::stable_sort(settings,
                           [](const auto& left, const auto& right) { return left.second > right.second; });
  std::vector<std::string> names;
  for (auto& setting : settings) names.push_back(std::move(setting.first));
  return names;
}

/// A picture of the main figures of a table; nothing where neither of two values is the better one: their
/// scales differ.
std::optional<Figure> pair_figure(const TableComparison& table, const ComparedPivot& pivot) {
  if (pivot.better == Better::neither) return std::nullopt;
  Variants variants(fmt::format("{}-{}", name_of(table.table), pivot.metric));
  for (const std::string& setting : settings_of(pivot)) {
    PairPlot plot;
    std::vector<double> values;
    for (const ComparedFigure& figure : pivot.figures) {
      if (figure.setting != setting || (std::isnan(figure.a) && std::isnan(figure.b))) continue;
      plot.rows.push_back({figure.shown, figure.a, figure.b, figure.item});
      values.insert(values.end(), {figure.a, figure.b});
    }
    if (plot.rows.empty()) continue;
    std::ranges::stable_sort(plot.rows, [&](const auto& left, const auto& right) {
      if (std::isnan(left.a) || std::isnan(right.a)) return !std::isnan(left.a) && std::isnan(right.a);
      return pivot.better == Better::smaller ? left.a < right.a : left.a > right.a;
    });
    plot.title = setting.empty() ? pivot.title : fmt::format("{}, {}", pivot.title, setting);
    plot.x = figure_axis(pivot.metric, pivot.scale, values);
    variants.add({setting}, std::move(plot));
  }
  std::string heading = pivot.title;
  heading.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(heading.front())));
  return variants.figure(
      {"setting"}, std::move(heading),
      fmt::format("The ring is A, the dot is B, in the order of A, its best first; to the {} is better. A "
                  "dot in its ring is hardly a difference; items change places where the dots do not follow "
                  "each other as the rings do.{}",
                  pivot.better == Better::smaller ? "left" : "right",
                  pivot.scale == FigureScale::log ? " Zeros stand on the left edge." : ""));
}

/// Counts of compared values for every table, each with a link to the table's part of the page.
std::string counts_table(const std::vector<TableComparison>& tables) {
  std::string rows;
  for (const TableComparison& table : tables)
    rows += fmt::format(
        "<tr><th scope=\"row\"><a href=\"#part-{0}\">{0}</a></th><td>{1}</td><td>{2}</td><td>{3}</td>"
        "<td>{4}</td></tr>\n",
        escaped(std::string(name_of(table.table))), table.rows.size(), table.differing, table.only_a,
        table.only_b);
  return table_html({"figures", "in both", "that differ", "only in A", "only in B"}, rows) + "\n";
}

std::string title_of(const FolderComparison::Side& a, const FolderComparison::Side& b) {
  return a.model == b.model ? a.model : fmt::format("{} and {}", a.model, b.model);
}

Section figures_section(const FolderComparison& comparison) {
  Section section{"figures", "A against B", "", {}, ""};
  for (const TableComparison& table : comparison.tables) {
    if (table.differing == 0) continue;
    for (const ComparedPivot& pivot : table.pivots)
      if (auto figure = pair_figure(table, pivot)) section.figures.push_back(std::move(*figure));
  }
  if (section.figures.empty()) section.missing = "None of the main figures of the model differs.";
  return section;
}

}  // namespace

Page make_page(const FolderComparison& comparison, std::size_t most) {
  Page page;
  const FolderComparison::Side &a = comparison.a, &b = comparison.b;
  page.title = title_of(a, b);
  std::size_t figures = 0, differing = 0;
  for (const TableComparison& table : comparison.tables) {
    figures += table.rows.size();
    differing += table.differing;
  }
  page.lead = fmt::format("Two result folders side by side: {} of {} figures differ. {}", differing, figures,
                          headline_of(comparison));
  page.facts = {{"A", side_text(a)}, {"B", side_text(b)}};
  HtmlPage said;
  describe(comparison, most, said);
  for (const HtmlPage::Part& part : said.parts) {
    const bool first = page.sections.empty();  // the differences between the runs
    page.sections.push_back({first ? "overview" : fmt::format("part-{}", part.heading),
                             part.heading,
                             "",
                             {},
                             first ? part.html + counts_table(comparison.tables) : part.html});
    if (first) page.sections.push_back(figures_section(comparison));
  }
  return page;
}

Page make_page(const ComparisonOverPrompts& comparison, std::size_t most) {
  Page page;
  page.title = title_of(comparison.a, comparison.b);
  page.lead = fmt::format("Two result folders side by side, prompt by prompt: {} in both",
                          counted(std::ssize(comparison.prompts), "prompt"));
  page.facts = {{"A", side_text(comparison.a)}, {"B", side_text(comparison.b)}};
  HtmlPage said;
  describe(comparison, most, said);
  for (std::size_t i = 0; i < said.parts.size(); ++i)
    page.sections.push_back(
        {i == 0 ? "overview" : fmt::format("part-{}", i), said.parts[i].heading, "", {}, said.parts[i].html});
  return page;
}

}  // namespace kvreplay::report
