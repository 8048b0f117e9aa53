#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace fs = std::filesystem;

namespace {

struct Document {
  std::set<std::string> anchors;  ///< of its headings, as GitHub and others name them
  std::vector<std::string> links;
};

std::string content(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::size_t characters(const std::string& utf8) {
  return static_cast<std::size_t>(
      std::count_if(utf8.begin(), utf8.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char c : heading) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == ' ') anchor += '-';
    if (byte >= 0x80 || std::isalnum(byte) || c == '-' || c == '_')
      anchor += static_cast<char>(std::tolower(byte));
  }
  return anchor;
}

/// Headings and links outside of code.
Document read_document(const fs::path& file) {
  static const std::regex code("`[^`]*`"), link(R"(\]\(([^)\s]+)\))");
  Document document;
  std::ifstream in(file);
  bool fenced = false;
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("```", 0) == 0) fenced = !fenced;
    if (fenced) continue;
    const auto text = line.find_first_not_of('#');
    if (text != 0 && text != std::string::npos && line[text] == ' ')
      document.anchors.insert(anchor_of(line.substr(text + 1)));
    line = std::regex_replace(line, code, "`");
    for (std::sregex_iterator at(line.begin(), line.end(), link), end; at != end; ++at)
      document.links.push_back((*at)[1]);
  }
  CHECK_FALSE(fenced);
  return document;
}

std::map<fs::path, Document> all_documents() {
  const fs::path root = kvreplay::test::source_dir();
  std::map<fs::path, Document> documents;
  for (const char* page : {"README.md", "CHANGELOG.md", "AGENTS.md"})
    documents[root / page] = read_document(root / page);
  for (const char* folder : {".github", "data", "sim", "analysis", "viewer", "tests"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (entry.path().extension() == ".md") documents[entry.path()] = read_document(entry.path());
    }
  }
  return documents;
}

}  // namespace

TEST_CASE("every link and picture of every document is there", "[house]") {
  const auto documents = all_documents();
  std::size_t seen = 0;
  for (const auto& [file, document] : documents) {
    for (const auto& link : document.links) {
      if (link.find("://") != std::string::npos) continue;
      const auto hash = link.find('#');
      const std::string path = link.substr(0, hash);
      const fs::path target = path.empty() ? file : (file.parent_path() / path).lexically_normal();
      INFO(file.string() << ": " << link);
      CHECK(fs::exists(target));
      if (hash != std::string::npos) {
        const auto at = documents.find(target);
        REQUIRE(at != documents.end());
        CHECK(at->second.anchors.count(link.substr(hash + 1)) == 1);
      }
      ++seen;
    }
  }
  CHECK(documents.size() > 10);
  CHECK(seen > 50);
}

// The page's C++ is a program that tests/consumer builds as printed.
TEST_CASE("INSTALL.md shows the library as the consumer uses it", "[house]") {
  const fs::path root = kvreplay::test::source_dir();
  const std::string text = content(root / "analysis/package/INSTALL.md"),
                    used = content(root / "tests/consumer/CMakeLists.txt");
  const std::string fence = "```cmake\n";
  const auto begin = text.find(fence);
  REQUIRE(begin != std::string::npos);
  const auto shown = begin + fence.size();
  std::istringstream lines(text.substr(shown, text.find("```", shown) - shown));
  int seen = 0;
  for (std::string line; std::getline(lines, line); ++seen) {
    INFO(line);
    CHECK(used.find(line) != std::string::npos);
  }
  CHECK(seen > 1);
}

TEST_CASE("the README is read in five minutes", "[house]") {
  const std::string text = content(kvreplay::test::source_dir() / "README.md");
  CHECK(characters(text) > 1000);
  CHECK(characters(text) <= 7000);
}
