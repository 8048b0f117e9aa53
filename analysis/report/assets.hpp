#pragma once

#include <string_view>

namespace kvreplay::report {

// The files of these names in this folder, as they were when this program was built.
std::string_view report_css();
std::string_view figure_css();  ///< also inside every picture's own file: without '<' and '&'
std::string_view report_js();
std::string_view prompt_css();
std::string_view prompt_js();
std::string_view state_js();

}  // namespace kvreplay::report
