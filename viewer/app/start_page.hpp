#pragma once

#include "viewer/app/path_prompt.hpp"
#include "viewer/model/layout.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// What is shown while nothing is open: the sample, what was opened before, a field for a path, and what a
/// dump is.
class StartPage {
 public:
  struct Given {
    std::filesystem::path sample;     ///< empty: not there
    std::vector<std::string> recent;  ///< newest first
    std::string opening, error;       ///< a path, a line; empty: none
  };
  struct Chosen {
    std::filesystem::path path;
    bool sample = false;
  };
  std::optional<Chosen> draw(Desk& desk, const Area& area, const Given& given);

 private:
  std::optional<std::filesystem::path> draw_recent(Desk& desk, const std::vector<std::string>& recent);

  PathPrompt prompt_;
};

}  // namespace kvreplay::viewer
