// What meets who opens the dashboard for the first time, without drawing it.

#include "tests/analysis/kvreplay_program.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"
#include "viewer/model/layout.hpp"
#include "viewer/model/session.hpp"
#include "viewer/model/tour.hpp"
#include "viewer/questions/folder_listing.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace kvreplay::viewer {
namespace {

namespace fs = std::filesystem;
using test::TempDir;

struct Folder {
  TempDir dir;
  std::string root = std::filesystem::path(dir / "x").parent_path().string() + "/";
  Folder() {
    for (const char* name : {"beta", "alpha/layer_00", "alpine", ".hidden", "dump", "out"})
      fs::create_directories(root + name);
    for (const char* name : {"dump/manifest.json", "out/summary.json", "notes.txt", "packed.npz"})
      std::ofstream(root + name) << "{}";
  }
  std::vector<std::string> names(const std::string& begun) const {
    std::vector<std::string> all;
    for (const FolderEntry& entry : folder_listing(root + begun).entries)
      all.push_back(entry.name +
                    (entry.kind == PathKind::folder ? "/" : ":" + std::string(name_of(entry.kind))));
    return all;
  }
  std::string completion(const std::string& begun) const {
    const std::string whole = completed(root + begun, folder_listing(root + begun));
    return whole.substr(root.size());
  }
};

using Names = std::vector<std::string>;

TEST_CASE("a folder is listed with what of it can be opened first", "[start]") {
  const Folder folder;
  CHECK(folder.names("") ==
        Names{"alpha:dump", "dump:dump", "out:results", "packed.npz:dump", "alpine/", "beta/"});
  CHECK(folder.names("al") == Names{"alpha:dump", "alpine/"});
  CHECK(folder.names(".h") == Names{".hidden/"});
  CHECK(folder.names("notes").empty());  // nothing to open
  CHECK(folder.names("beta/").empty());
  CHECK(folder_listing(folder.root + "beta/").readable);
  CHECK_FALSE(folder_listing(folder.root + "none/").readable);
  CHECK_FALSE(folder_listing(folder.root + "notes.txt/").readable);
  CHECK(path_kind(folder.root + "none") == PathKind::missing);
  CHECK(path_kind(folder.root + "notes.txt") == PathKind::missing);
}

TEST_CASE("Tab adds what all that fits has in common", "[start]") {
  const Folder folder;
  CHECK(folder.completion("a") == "alp");
  CHECK(folder.completion("alp") == "alp");
  CHECK(folder.completion("alph") == "alpha/");
  CHECK(folder.completion("b") == "beta/");
  CHECK(folder.completion("beta") == "beta/");
  CHECK(folder.completion("beta/") == "beta/");
  CHECK(folder.completion("pa") == "packed.npz");  // is no folder
  CHECK(folder.completion("zzz") == "zzz");
  CHECK(completed("x", {}) == "x");
  FolderListing many;
  many.entries = {{"xyz", PathKind::folder}};
  many.more = true;  // there are others
  CHECK(completed("x", many) == "x");
  CHECK(folder_part("/a/b") == "/a/");
  CHECK(folder_part("b").empty());
}

TEST_CASE("a tilde is the user's home", "[start]") {
  const char* home = std::getenv("HOME");
  if (home == nullptr) return;
  CHECK(path_of("~/x") == fs::path(home) / "x");
  CHECK(path_of("~") == fs::path(home));
  CHECK(path_of("~other/x") == fs::path("~other/x"));
  CHECK(path_of("a~/x") == fs::path("a~/x"));
}

TEST_CASE("the sample is found from the program's folder and those above it", "[start]") {
  const fs::path sample(test::sample_dump()), root = sample.parent_path().parent_path().parent_path();
  CHECK(fs::equivalent(find_sample({root / "build" / "release" / "bin"}), sample));
  CHECK(fs::equivalent(find_sample({fs::path("/"), root}), sample));
  CHECK(find_sample({}).empty());
  const TempDir dir;
  CHECK(find_sample({fs::path(dir / "a/b")}).empty());
  fs::create_directories(dir / "share/kvreplay/samples/pystdlib-lm/layer_00");  // installed
  CHECK(find_sample({fs::path(dir / "bin")}) == fs::path(dir / "share/kvreplay/samples/pystdlib-lm"));
}

TEST_CASE("what was opened is kept newest first, each once", "[start]") {
  std::vector<std::string> recent;
  for (const char* path : {"a", "b", "a", "c"}) add_recent(recent, path);
  CHECK(recent == Names{"c", "a", "b"});
  for (int i = 0; i < 30; ++i) add_recent(recent, std::to_string(i));
  CHECK(recent.size() == kMostRecent);
  CHECK(recent.front() == "29");
}

TEST_CASE("panels are arranged for a question, every one of them somewhere", "[presets]") {
  CHECK(layout_for(Preset::loss) == Layout::standard());
  std::vector<Layout> seen;
  for (const PresetFacts& preset : kPresets) {
    INFO(preset.name);
    const Layout layout = layout_for(preset.id);
    CHECK(layout.in_front(preset.panel));
    std::multiset<PanelKind> panels;
    float largest = 0, answering = 0;
    for (const Layout::Slot& slot : layout.slots({0, 0, 1280, 720}, 6, {100, 100})) {
      panels.insert(slot.panels.begin(), slot.panels.end());
      const float size = slot.area.width * slot.area.height;
      largest = std::max(largest, size);
      if (slot.panels[slot.front] == preset.panel) answering = size;
    }
    for (const PanelKind panel : kPanels.all()) CHECK(panels.count(panel) == 1);
    CHECK(answering >= 0.75F * largest);
    CHECK(std::find(seen.begin(), seen.end(), layout) == seen.end());
    CHECK(Layout::from_json(layout.to_json()) == layout);
    seen.push_back(layout);
  }
}

TEST_CASE("the tour has seven steps, there and back, and an end", "[tour]") {
  Tour tour;
  CHECK_FALSE(tour.running());
  tour.next();
  tour.back();
  CHECK_FALSE(tour.running());
  tour.begin();
  tour.back();
  CHECK(tour.number() == 0);
  std::set<std::string_view> titles;
  for (std::size_t i = 0; i < 7; ++i) {
    REQUIRE(tour.running());
    CHECK(tour.number() == i);
    CHECK(titles.insert(tour.step().title).second);
    CHECK(tour.step().text.size() < 260);  // a small card
    tour.next();
  }
  CHECK_FALSE(tour.running());
  tour.begin();
  tour.next();
  tour.back();
  CHECK(tour.number() == 0);
  tour.end();
  CHECK_FALSE(tour.running());
}

}  // namespace
}  // namespace kvreplay::viewer
