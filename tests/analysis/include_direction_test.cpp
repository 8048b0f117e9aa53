#include "tests/support/catch.hpp"

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <string>

namespace fs = std::filesystem;

// data <- sim <- analysis <- viewer: a folder includes itself and what stands to its left.
TEST_CASE("includes go left only", "[house]") {
  const std::map<std::string, int> place = {{"data", 0}, {"sim", 1}, {"analysis", 2}, {"viewer", 3}};
  const std::regex include("^\\s*#\\s*include\\s*\"([^/\"]+)/[^\"]*\"");
  int seen = 0;
  for (const auto& [folder, at] : place) {
    const fs::path root = fs::path(KVREPLAY_SOURCE_DIR) / folder;
    if (!fs::exists(root)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".hpp" && extension != ".cpp" && extension != ".h" && extension != ".cu" &&
          extension != ".cuh")
        continue;
      std::ifstream in(entry.path());
      std::smatch match;
      for (std::string line; std::getline(in, line);) {
        if (!std::regex_search(line, match, include)) continue;
        ++seen;
        const auto target = place.find(match[1]);
        INFO(entry.path().string() << ": " << line);
        REQUIRE((target != place.end() && target->second <= at));
      }
    }
  }
  CHECK(seen > 50);
}
