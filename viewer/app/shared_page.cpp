#include "viewer/app/shared_page.hpp"

#include "analysis/report/figure.hpp"
#include "analysis/report/text.hpp"

#include <fmt/format.h>

namespace kvreplay::viewer {
namespace {

using report::escaped;

report::Section panels_of(const SharedPlace& place) {
  report::Section section{"panels", "What was seen", "", {}, ""};
  for (const SharedPanel& panel : place.panels)
    section.figures.push_back({.name = "panel-" + panel.name,
                               .heading = panel.title,
                               .reading = panel.question,
                               .body = report::png_html(panel.png, panel.width, panel.title)});
  return section;
}

report::Section settings_of(const SharedPlace& place) {
  std::string rows;
  for (const auto& [name, value] : place.settings)
    rows += fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n", escaped(name), escaped(value));
  return {"settings", "What was set", "", {}, report::table_html({"setting", "value"}, rows, false)};
}

report::Section commands_of(const SharedPlace& place) {
  std::string html;
  for (const auto& [does, command] : place.commands)
    html += fmt::format("<p>{}</p><code class=\"command\">{}</code>\n", escaped(does), escaped(command));
  html += fmt::format("<details><summary>place.json</summary><code class=\"command\">{}</code></details>\n",
                      escaped(place.session));
  return {"commands", "What makes it", "", {}, html};
}

}  // namespace

std::string html_of(const SharedPlace& place) {
  report::Page page;
  page.title = place.title;
  page.lead = place.lead;
  page.facts = place.facts;
  page.sections = {panels_of(place), settings_of(place), commands_of(place)};
  return report::still_html_of(page);
}

}  // namespace kvreplay::viewer
