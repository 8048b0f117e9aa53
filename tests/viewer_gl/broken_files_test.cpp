// Files that break or vanish while they are open.

#include "tests/data/small_dump.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer_gl/dashboard.hpp"

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::Dashboard;

namespace {

namespace fs = std::filesystem;

/// All that failed, each as one line.
std::vector<std::string> failures(const Dashboard& dashboard) {
  std::vector<std::string> lines;
  auto& queue = const_cast<Dashboard&>(dashboard).app.queue();
  for (const JobQueue::Done& done : queue.log())
    if (!done.error.empty()) lines.push_back(done.title + ": " + done.error);
  return lines;
}

bool any_has(const std::vector<std::string>& lines, const std::string& part) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

}  // namespace

TEST_CASE("broken: a file cut short in layer 20 of 24 is named in the window, all else goes on", "[broken]") {
  const test::TempDir folder;
  test::SmallDump small;
  small.layers = 24;
  small.write(folder / "dump");
  const fs::path bad = folder / "dump" / "layer_20" / "k.npy";
  Dashboard dashboard("", 1000, 640);
  dashboard.app.open(folder / "dump");
  // After its files were checked, before anything of them is read.
  dashboard.app.when_open([&](AppState& state) {
    fs::resize_file(bad, fs::file_size(bad) / 2);
    state.select_head(20, 1);
  });
  dashboard.settle();
  const auto lines = failures(dashboard);
  REQUIRE_FALSE(lines.empty());
  CHECK(any_has(lines, "layer_20/k.npy"));
  for (const std::string& line : lines) {
    INFO(line);
    CHECK(line.find('\n') == std::string::npos);
    CHECK(line.find("layer_20") != std::string::npos);  // no other layer suffers
  }
  CHECK(dashboard.app.state().message_is_error());
  CHECK(dashboard.app.state().message().find("layer_20/k.npy") != std::string::npos);

  for (const Index layer : {Index{19}, Index{21}, Index{0}}) {
    dashboard.app.state().select_head(layer, 0);
    dashboard.settle();
  }
  for (const std::string& line : failures(dashboard)) {
    INFO(line);
    CHECK(line.find("layer_20") != std::string::npos);
  }
  CHECK(dashboard.app.state().runs.size() == 1);
}

TEST_CASE("broken: layers that vanish while open are named, the others can be looked at", "[broken]") {
  const test::TempDir folder;
  test::SmallDump small;
  small.layers = 3;
  small.write(folder / "dump");
  Dashboard dashboard("", 1000, 640);
  dashboard.app.open(folder / "dump");
  dashboard.app.when_open([&](AppState& state) {
    fs::remove_all(folder / "dump" / "layer_02");
    state.select_head(2, 0);
  });
  dashboard.settle();
  const auto lines = failures(dashboard);
  REQUIRE_FALSE(lines.empty());
  CHECK(any_has(lines, "layer_02"));
  dashboard.app.state().select_head(1, 0);
  dashboard.settle();
  CHECK_FALSE(any_has(failures(dashboard), "layer_01"));
  CHECK(dashboard.app.state().runs.size() == 1);
}
