#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::viewer {

/// A panel as it was seen.
struct SharedPanel {
  std::string name, title, question;
  std::vector<std::byte> png;
  int width = 0;  ///< points
};

/// A place of the dashboard in words and pictures, for those who have neither program nor dump. Names, values
/// and commands are plain text.
struct SharedPlace {
  using Rows = std::vector<std::pair<std::string, std::string>>;
  std::string title, lead;
  Rows facts;           ///< which model, dump and token
  Rows settings;        ///< what was set of the policies
  Rows commands;        ///< what each does, and the command
  std::string session;  ///< that the commands read as a file
  std::vector<SharedPanel> panels;
};

/// One HTML file that needs no other, in the report's clothes.
std::string html_of(const SharedPlace& place);

}  // namespace kvreplay::viewer
