#pragma once

#include <string>
#include <vector>

namespace kvreplay::test {

/// What an XML parser has against a text; empty where it is well-formed.
std::string xml_fault(const std::string& text);

/// Every <svg ...> ... </svg> in an HTML page.
std::vector<std::string> pictures_in(const std::string& html);

}  // namespace kvreplay::test
