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

std::string settings_table(const Json& summary, std::initializer_list<const char*> keys) {
  std::string html = "<div class=\"scroll\"><table>";
  for (const char* key : keys)
    if (const auto found = summary.find(key); found != summary.end() && found->is_object())
      add_rows(html, "", *found);
  return html + "</table></div>\n";
}

Section run_section(const Tables& tables) {
  return {"run", "How it was run", "", {}, settings_table(tables.results.summary(), {"dump", "options"})};
}

}  // namespace kvreplay::report
