#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

// Commands that are refused, from the table in refusals.txt.

using namespace kvreplay::test;
namespace fs = std::filesystem;

namespace {

/// At separators outside of braces.
std::vector<std::string> split(const std::string& text, const std::string& separator) {
  std::vector<std::string> pieces(1);
  for (std::size_t i = 0, depth = 0; i < text.size(); ++i) {
    depth += text[i] == '{';
    depth -= text[i] == '}';
    if (depth == 0 && text.compare(i, separator.size(), separator) == 0) {
      pieces.emplace_back();
      i += separator.size() - 1;
    } else {
      pieces.back() += text[i];
    }
  }
  return pieces;
}

std::string with_all(std::string text, const std::string& what, const std::string& instead) {
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += instead.size())
    text.replace(at, what.size(), instead);
  return text;
}

/// A command and the parts of the line that refuses it, for one of the choices in the command's braces.
void check_refusal(const std::vector<std::string>& command, const std::string& braces,
                   const std::string& choice, const std::vector<std::string>& parts, const fs::path& dump,
                   const fs::path& out) {
  std::vector<std::string> arguments;
  std::string shown;
  for (const std::string& word : command) {
    if (word.empty()) continue;
    arguments.push_back(word == "DUMP"  ? dump.string()
                        : word == "OUT" ? out.string()
                        : word == "''"  ? ""
                                        : word);
    if (!braces.empty()) arguments.back() = with_all(arguments.back(), braces, choice);
    shown += word + " ";
  }
  INFO(shown << "with " << choice);
  const std::string line = complaint(arguments);
  for (const std::string& part : parts) {
    const std::string wanted = with_all(part, "{}", choice);
    INFO(line << "lacks " << wanted);
    CHECK(contains(line, wanted));
  }
  CHECK_FALSE(fs::exists(out));
}

void check_refusals(const std::string& section, const fs::path& dump) {
  const TempDir temp;
  std::istringstream table(file_text(source_dir() / "tests/analysis/refusals.txt"));
  std::string beginning;
  bool here = false;
  std::size_t tried = 0;
  for (std::string row; std::getline(table, row);) {
    if (row.starts_with("[")) {
      here = row.starts_with("[" + section + "]");
      beginning = row.substr(row.find(']') + 1);
    } else if (here && !row.empty()) {
      const std::size_t bar = row.find("| ");
      REQUIRE(bar != std::string::npos);
      const std::string options = row.substr(0, bar);
      const std::size_t open = options.find('{'), close = options.find('}');
      const std::string braces = open < close ? options.substr(open, close + 1 - open) : "";
      for (const std::string& choice :
           split(braces.empty() ? "" : braces.substr(1, braces.size() - 2), " ")) {
        check_refusal(split(beginning + " " + options, " "), braces, choice == "''" ? "" : choice,
                      split(row.substr(bar + 2), " & "), dump, temp / "r");
        ++tried;
      }
    }
  }
  CHECK(tried > 8);
}

void check_small_dump(const std::string& section) {
  const TempDir temp;
  make_small_dump(temp / "dump");
  check_refusals(section, temp / "dump");
}

}  // namespace

TEST_CASE("bad usage is one line that says what was meant", "[cli]") {
  check_refusals("usage", sample_dump());
}
TEST_CASE("mistakes in budget's options are one line, and leave no folder", "[cli][budget]") {
  check_small_dump("budget");
}
TEST_CASE("mistakes in the options of channels are one line, and leave no folder", "[cli][channels]") {
  check_small_dump("channels");
}
TEST_CASE("what cannot be compensated is refused", "[cli][compensate]") { check_small_dump("compensate"); }
TEST_CASE("mistakes in --channels, --bits and what goes with them are one line, and leave no folder",
          "[cli][compress]") {
  check_small_dump("compress");
}
TEST_CASE("mistakes in evict's options are one line, and leave no folder", "[cli][evict]") {
  check_small_dump("evict");
}
TEST_CASE("mistakes in a part's options name it as it is called there", "[cli][parts]") {
  check_small_dump("parts");
}
