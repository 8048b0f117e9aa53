#pragma once

#include "analysis/report/figure.hpp"

#include <string>
#include <utility>
#include <vector>

namespace kvreplay::report {

struct Page {
  std::string title;
  std::string lead;  ///< what was run, in a sentence; plain text
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<std::string> remarks;  ///< what a reader has to know before any number
  std::vector<Section> sections;
};

/// One HTML file that needs no other. `figure_folder` is where the figures' files lie, as a link from the
/// page.
std::string html_of(const Page& page, const std::string& figure_folder);

}  // namespace kvreplay::report
