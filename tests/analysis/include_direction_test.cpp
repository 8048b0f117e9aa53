#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>

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

/// Folders of a house, each with those of the same house that it may include besides itself.
using Allowed = std::map<std::string, std::set<std::string>>;

/// Checks every include of a house's folder; returns how many there were. A house is a path that ends with a
/// slash, empty for the repository.
int check_includes(const std::string& house, const Allowed& allowed) {
  const std::set<std::string> sources = {".hpp", ".cpp", ".h", ".cu", ".cuh"};
  int seen = 0;
  for (const auto& [folder, others] : allowed) {
    const fs::path root = kvreplay::test::source_dir() / house / folder;
    INFO(root.string());
    REQUIRE(fs::exists(root));
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
      if (sources.count(entry.path().extension().string()) == 0) continue;
      std::ifstream in(entry.path());
      for (std::string line; std::getline(in, line);) {
        const std::string path = included_path(line);
        const auto slash = path.find('/', house.size());
        if (!path.starts_with(house) || slash == std::string::npos) continue;
        ++seen;
        const std::string included = path.substr(house.size(), slash - house.size());
        INFO(entry.path().string() << ": " << line);
        REQUIRE((included == folder || others.count(included) == 1));
      }
    }
  }
  return seen;
}

}  // namespace

// data <- sim <- analysis <- viewer: a folder includes itself and what stands to its left.
TEST_CASE("includes go left only", "[house]") {
  CHECK(check_includes("", {{"data", {}},
                            {"sim", {"data"}},
                            {"analysis", {"data", "sim"}},
                            {"viewer", {"data", "sim", "analysis"}}}) > 50);
}

// model <- work, gl <- widgets <- panels <- app: what is computed and how it is drawn know nothing of each
// other; a toolkit begins with gl.
TEST_CASE("includes within the viewer go left only", "[house]") {
  CHECK(check_includes("viewer/", {{"model", {}},
                                   {"work", {"model"}},
                                   {"gl", {"model"}},
                                   {"widgets", {"model", "work", "gl"}},
                                   {"panels", {"model", "work", "gl", "widgets"}},
                                   {"app", {"model", "work", "gl", "widgets", "panels"}}}) > 200);
}

// A panel's folder includes what panels share, not other panels' folders.
TEST_CASE("a panel knows no other panel", "[house]") {
  Allowed panels;
  for (const auto& entry : fs::directory_iterator(kvreplay::test::source_dir() / "viewer" / "panels"))
    if (entry.is_directory()) panels[entry.path().filename().string()] = {};
  CHECK(panels.size() > 5);
  CHECK(check_includes("viewer/panels/", panels) > 50);
}

// options, drawing <- results (tables, their reader and writer, ranks) <- run <- the analyses, each on what
// stands to its left <- what reads their results <- commands and Python.
TEST_CASE("includes within analysis go left only", "[house]") {
  const std::set<std::string> base = {"options", "results", "run", "given", "measure"};
  const auto with = [&](std::set<std::string> more) {
    more.insert(base.begin(), base.end());
    return more;
  };
  const std::set<std::string> analyses = with({"tokens", "channels", "eviction", "budgets"});
  const auto reading = [&](std::set<std::string> more) {
    more.insert(analyses.begin(), analyses.end());
    return more;
  };
  CHECK(check_includes("analysis/",
                       {{"options", {}},
                        {"drawing", {}},
                        {"results", {"options"}},
                        {"given", {"options"}},
                        {"run", {"options", "results"}},
                        {"measure", {"options", "results", "run"}},
                        {"tokens", base},
                        {"channels", with({"drawing"})},
                        {"eviction", with({"channels"})},
                        {"budgets", with({"eviction"})},
                        {"claims", {"results", "budgets"}},
                        {"findings", {"results", "run", "tokens", "eviction"}},
                        {"verify", with({"tokens"})},
                        {"report", {"options", "drawing", "results", "eviction", "claims", "findings"}},
                        {"commands", reading({"findings", "report", "verify"})},
                        {"python", analyses}}) > 300);
}
