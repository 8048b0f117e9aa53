#include "viewer/model/panel_kind.hpp"

#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

using namespace kvreplay::viewer;

TEST_CASE("panels are found by their names", "[viewer][panels]") {
  std::set<std::string_view> titles;
  for (const PanelFacts& panel : kPanels) {
    INFO(panel.name);
    CHECK(kPanels.named(panel.name) == panel.id);
    CHECK(titles.insert(panel.title).second);
    CHECK(panel.question.ends_with("?"));
  }
  CHECK(kPanels.named("what-if") == PanelKind::what_if);
  CHECK_FALSE(kPanels.named("").has_value());
  CHECK_FALSE(kPanels.named("Head map").has_value());
}

TEST_CASE("DASHBOARD.md has every panel, in the table's words and order", "[viewer][panels]") {
  std::ifstream file(kvreplay::test::source_dir() / "viewer" / "DASHBOARD.md");
  std::string line;
  while (std::getline(file, line) && !line.starts_with("| panel")) {
  }
  REQUIRE(std::getline(file, line));  // the rule below the heads
  for (const PanelFacts& panel : kPanels) {
    REQUIRE(std::getline(file, line));
    const std::string begin = fmt::format("| {} (`{}`) | {} | ", panel.title, panel.name, panel.question);
    CHECK(line.substr(0, begin.size()) == begin);
  }
  REQUIRE(std::getline(file, line));
  CHECK(line.empty());
}
