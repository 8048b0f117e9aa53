#include "tests/analysis/xml_check.hpp"

#include <fmt/format.h>

#include <expat.h>
#include <regex>
#include <set>

namespace kvreplay::test {

std::string xml_fault(const std::string& text) {
  const XML_Parser parser = XML_ParserCreate("UTF-8");
  std::string fault;
  if (XML_Parse(parser, text.data(), static_cast<int>(text.size()), 1) == XML_STATUS_ERROR)
    fault = fmt::format("line {}, column {}: {}", XML_GetCurrentLineNumber(parser),
                        XML_GetCurrentColumnNumber(parser), XML_ErrorString(XML_GetErrorCode(parser)));
  XML_ParserFree(parser);
  return fault;
}

std::vector<std::string> pictures_in(const std::string& html) {
  std::vector<std::string> pictures;
  for (std::size_t at = html.find("<svg "); at != std::string::npos; at = html.find("<svg ", at + 1)) {
    const std::size_t end = html.find("</svg>", at);
    pictures.push_back(html.substr(at, end == std::string::npos ? end : end + 6 - at));
  }
  return pictures;
}

std::vector<std::string> repeated_ids(const std::string& html) {
  std::set<std::string> ids;
  std::vector<std::string> repeated;
  const std::regex id(" id=\"([^\"]*)\"");
  for (std::sregex_iterator at(html.begin(), html.end(), id), end; at != end; ++at)
    if (!ids.insert((*at)[1].str()).second) repeated.push_back((*at)[1].str());
  return repeated;
}

}  // namespace kvreplay::test
