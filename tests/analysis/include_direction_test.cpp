#include "tests/support/catch.hpp"

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>

namespace fs = std::filesystem;

namespace {

/// The first folder in `#include "folder/..."`; empty where the line is none of that kind.
std::string included_folder(const std::string& line) {
  const auto begin = line.find_first_not_of(" \t");
  if (begin == std::string::npos || line.compare(begin, 1, "#") != 0) return "";
  const auto word = line.find_first_not_of(" \t", begin + 1);
  if (word == std::string::npos || line.compare(word, 7, "include") != 0) return "";
  const auto quote = line.find('"', word), slash = line.find('/', word);
  if (quote == std::string::npos || slash == std::string::npos || slash < quote) return "";
  return line.substr(quote + 1, slash - quote - 1);
}

}  // namespace

// data <- sim <- analysis <- viewer: a folder includes itself and what stands to its left.
TEST_CASE("includes go left only", "[house]") {
  const std::map<std::string, int> place = {{"data", 0}, {"sim", 1}, {"analysis", 2}, {"viewer", 3}};
  const std::set<std::string> sources = {".hpp", ".cpp", ".h", ".cu", ".cuh"};
  int seen = 0;
  for (const auto& [folder, at] : place) {
    const fs::path root = fs::path(KVREPLAY_SOURCE_DIR) / folder;
    if (!fs::exists(root)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
      if (sources.count(entry.path().extension().string()) == 0) continue;
      std::ifstream in(entry.path());
      for (std::string line; std::getline(in, line);) {
        const std::string included = included_folder(line);
        if (included.empty()) continue;
        ++seen;
        const auto target = place.find(included);
        INFO(entry.path().string() << ": " << line);
        REQUIRE((target != place.end() && target->second <= at));
      }
    }
  }
  CHECK(seen > 50);
}
