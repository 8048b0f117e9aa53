#include "analysis/report/sections.hpp"
#include "analysis/report/text.hpp"

#include <fmt/format.h>

namespace kvreplay::report {
namespace {

using Json = nlohmann::ordered_json;

std::string value_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.is_null() ? "off" : value.dump();
  std::string text;
  for (const Json& item : value) text += fmt::format("{}{}", text.empty() ? "" : ", ", value_text(item));
  return text.empty() ? "none" : text;
}

void add_rows(std::string& html, const std::string& prefix, const Json& object) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_object())
      add_rows(html, prefix + key + " ", value);
    else
      html += fmt::format("<tr><th scope=\"row\">{}{}</th><td>{}</td></tr>", escaped(prefix), escaped(key),
                          escaped(value_text(value)));
  }
}

}  // namespace

Section run_section(const Tables& tables) {
  Section section{"run", "How it was run", "", {}, ""};
  const auto& summary = tables.results.summary();
  section.html = "<div class=\"scroll\"><table>";
  for (const char* key : {"dump", "options"})
    if (const auto found = summary.find(key); found != summary.end() && found->is_object())
      add_rows(section.html, "", *found);
  section.html += "</table></div>\n";
  return section;
}

}  // namespace kvreplay::report
