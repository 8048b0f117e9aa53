#pragma once

#include <string>
#include <vector>

namespace kvreplay::test {

/// The error that an XML parser reports for a text; empty if the text is well-formed.
std::string xml_fault(const std::string& text);

/// Every <svg ...> ... </svg> in an HTML page.
std::vector<std::string> pictures_in(const std::string& html);

/// The values of id that a page has more than once.
std::vector<std::string> repeated_ids(const std::string& html);

}  // namespace kvreplay::test
