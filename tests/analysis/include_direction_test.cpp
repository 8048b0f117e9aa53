#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace fs = std::filesystem;

namespace {

/// The path in `#include "path"`; empty where the line is none of that kind.
std::string included_path(const std::string& line) {
  const auto begin = line.find_first_not_of(" \t");
  if (begin == std::string::npos || line.compare(begin, 1, "#") != 0) return "";
  const auto word = line.find_first_not_of(" \t", begin + 1);
  if (word == std::string::npos || line.compare(word, 7, "include") != 0) return "";
  const auto quote = line.find('"', word);
  if (quote == std::string::npos) return "";
  return line.substr(quote + 1, line.find('"', quote + 1) - quote - 1);
}

const std::set<std::string> kSources = {".hpp", ".cpp", ".h", ".cu", ".cuh"};

/// Folders of a house, each with those of the same house that it may include besides itself.
using Allowed = std::map<std::string, std::set<std::string>>;

std::vector<fs::path> sources_of(const fs::path& folder, bool and_below) {
  std::vector<fs::path> found;
  for (auto at = fs::recursive_directory_iterator(folder); at != fs::end(at); ++at) {
    if (!and_below && at->is_directory()) at.disable_recursion_pending();
    if (kSources.count(at->path().extension().string()) == 1) found.push_back(at->path());
  }
  return found;
}

/// Checks every include of a house's folder; returns how many there were. A house is a path that ends with a
/// slash, empty for the repository. What stands in the house itself may be included by all; its own includes
/// are those of the folder ".".
int check_includes(const std::string& house, const Allowed& allowed) {
  int seen = 0;
  for (const auto& [folder, others] : allowed) {
    const fs::path root = kvreplay::test::source_dir() / house / folder;
    INFO(root.string());
    REQUIRE(fs::exists(root));
    for (const auto& source : sources_of(root, folder != ".")) {
      std::ifstream in(source);
      for (std::string line; std::getline(in, line);) {
        const std::string path = included_path(line);
        const auto slash = path.find('/', house.size());
        if (!path.starts_with(house) || slash == std::string::npos) continue;
        ++seen;
        const std::string included = path.substr(house.size(), slash - house.size());
        INFO(source.string() << ": " << line);
        REQUIRE((included == folder || others.count(included) == 1));
      }
    }
  }
  return seen;
}

/// The rows of the table in a house's README.md: folder, and what it may include, in their order.
std::vector<std::pair<std::string, std::set<std::string>>> map_rows(const std::string& house) {
  std::ifstream in(kvreplay::test::source_dir() / house / "README.md");
  const std::regex row("\\| `([^`]*)` \\|([^|]*)\\|.*"), name("`([^`]*)`");
  std::vector<std::pair<std::string, std::set<std::string>>> rows;
  for (std::string line; std::getline(in, line);) {
    std::smatch found;
    if (!std::regex_match(line, found, row)) continue;
    const std::string others = found[2];
    rows.push_back({found[1], {}});
    for (std::sregex_iterator at(others.begin(), others.end(), name), end; at != end; ++at)
      rows.back().second.insert((*at)[1]);
  }
  return rows;
}

}  // namespace

// data <- sim <- analysis <- viewer: a folder includes itself and what stands to its left.
TEST_CASE("includes go left only", "[house]") {
  CHECK(check_includes("", {{"data", {}},
                            {"sim", {"data"}},
                            {"analysis", {"data", "sim"}},
                            {"viewer", {"data", "sim", "analysis"}}}) > 50);
}

// Each has a README.md with a table of its folders and of what they may include.
TEST_CASE("within sim, analysis and viewer folders include what their map allows", "[house]") {
  for (const std::string house : {"sim", "analysis", "viewer"}) {
    const auto rows = map_rows(house);
    const Allowed map(rows.begin(), rows.end());
    std::set<std::string> before;  // so no two include each other
    for (const auto& [folder, others] : rows) {
      INFO(house << "/" << folder);
      CHECK(std::includes(before.begin(), before.end(), others.begin(), others.end()));
      before.insert(folder);
    }
    for (const auto& entry : fs::directory_iterator(kvreplay::test::source_dir() / house))
      if (entry.is_directory() && !sources_of(entry.path(), true).empty()) {
        INFO(entry.path().string());
        CHECK(map.count(entry.path().filename().string()) == 1);
      }
    CHECK(check_includes(house + "/", map) > 200);
  }
}

// A panel's folder includes what panels share, not other panels' folders.
TEST_CASE("a panel knows no other panel", "[house]") {
  Allowed panels;
  for (const auto& entry : fs::directory_iterator(kvreplay::test::source_dir() / "viewer" / "panels"))
    if (entry.is_directory()) panels[entry.path().filename().string()] = {};
  CHECK(panels.size() > 5);
  CHECK(check_includes("viewer/panels/", panels) > 20);
}

// So that it is built, with --serve and --screenshot, where GLFW and X are not.
TEST_CASE("of the dashboard its window alone knows GLFW", "[house]") {
  int knowing = 0;
  for (const auto& source : sources_of(kvreplay::test::source_dir() / "viewer", true)) {
    std::ifstream in(source);
    for (std::string line; std::getline(in, line);) {
      if (line.find("<GLFW/") == std::string::npos && line.find("imgui_impl_glfw.h") == std::string::npos)
        continue;
      ++knowing;
      CHECK(source.filename() == "window_host.cpp");
    }
  }
  CHECK(knowing == 2);
}

// A header that one file includes, besides the source of the same name, is a part of that file. Tests count
// as files: what has a test of its own has a second user. The exceptions are still to be joined; add none.
TEST_CASE("a header with one includer joins it", "[house]") {
  const std::set<std::string> exceptions = {
      "analysis/recommend/choice.hpp",
      "data/axis_order.hpp",
      "sim/cache/cuda/kept_kernels.hpp",
      "sim/channels/cuda/output_interaction_kernels.hpp",
      "sim/eviction/decode/cuda/decode_kernels.hpp",
      "sim/eviction/exact/cuda/exact_error_cuda.hpp",
      "sim/tokens/cuda/row_kernels.hpp",
  };
  const fs::path root = kvreplay::test::source_dir();
  std::map<std::string, std::set<std::string>> includers;  // by header
  for (const char* folder : {"data", "sim", "analysis", "viewer", "tests"})
    for (const auto& source : sources_of(root / folder, true)) {
      const fs::path own = fs::relative(source, root);
      if (folder != std::string("tests") && own.extension() == ".hpp") includers[own.generic_string()];
      std::ifstream in(source);
      for (std::string line; std::getline(in, line);) {
        const fs::path path = included_path(line);
        if (path.extension() == ".hpp" &&
            fs::path(path).replace_extension() != fs::path(own).replace_extension())
          includers[path.generic_string()].insert(own.generic_string());
      }
    }
  int headers = 0;
  for (const auto& [header, files] : includers) {
    if (header.starts_with("tests/") || !fs::exists(root / header)) continue;
    ++headers;
    INFO(header << (files.empty() ? "" : ", included by " + *files.begin()));
    CHECK((files.size() < 2) == exceptions.contains(header));
  }
  CHECK(headers > 200);
}
