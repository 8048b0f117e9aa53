#include "tests/analysis/xml_check.hpp"

#include <fmt/format.h>

#include <expat.h>

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

}  // namespace kvreplay::test
