// A place of the dashboard as one page.

#include "analysis/results/view_link.hpp"
#include "analysis/run/run.hpp"
#include "data/npy_write.hpp"
#include "sim/schedule.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/support/process.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer_gl/dashboard.hpp"
#include "viewer/app/app.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::contains;
using test::Dashboard;
using test::kSample;

namespace {

namespace fs = std::filesystem;

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++found;
  return found;
}

std::string shared(Dashboard& dashboard, const fs::path& path) {
  dashboard.app.share(path);
  dashboard.settle();
  INFO(dashboard.app.state().message());
  REQUIRE_FALSE(dashboard.app.state().message_is_error());
  CHECK(dashboard.app.state().message() == "Saved " + fs::absolute(path).string());
  return test::file_text(path);
}

/// What a browser would look for elsewhere, and any folder of this machine's.
void check_stands_alone(const std::string& page, const std::vector<fs::path>& folders) {
  CHECK(count(page, "src=\"") == count(page, "src=\"data:image/png;base64,"));
  for (const char* part : {"<script", "<link", "url(", "http:", "https:", "@import", "/home/", "/tmp/"}) {
    INFO(part);
    CHECK_FALSE(contains(page, part));
  }
  for (const fs::path& folder : folders) {
    INFO(folder);
    CHECK_FALSE(contains(page, folder.string()));
  }
}

/// HTML's escapes undone, as far as commands have them.
std::string plain(std::string text) {
  for (const auto& [escape, sign] : {std::pair("&#39;", "'"), {"&quot;", "\""}, {"&amp;", "&"}})
    for (std::size_t at = 0; (at = text.find(escape, at)) != std::string::npos; ++at)
      text.replace(at, std::string(escape).size(), sign);
  return text;
}

}  // namespace

TEST_CASE("a shared page says what is seen, set and done, and where, in one file", "[share]") {
  const test::TempDir folder;
  Dashboard dashboard(kSample);
  dashboard.app.show(PanelKind::scatter);
  dashboard.app.state().select_head(3, 1);
  dashboard.app.state().select_cell(1000, 379);
  dashboard.app.state().comparison.window = 16;
  dashboard.app.state().setting_a.base = "tova";
  dashboard.settle();
  const std::string page = shared(dashboard, folder / "place.html");
  check_stands_alone(page, {kSample, kSample.parent_path(), folder.path()});

  const Dump dump = Dump::open(kSample);
  Workers workers(1);
  for (const std::string& part :
       {std::string("layer 3, KV head 1"), dump.model(), fingerprint(dump),
        layer_fingerprints(dump, std::array{Index{3}}, workers).at(3) + " (layer 3)",
        std::string("379 &quot;.&quot;"), std::string("--policy tova --keep 20%"),
        std::string("179 of 896 tokens a head"),
        std::string(
            "kvreplay evict pystdlib-lm --out results/pystdlib-lm-B --policy snapkv+joint --keep 20%"),
        std::string("kvreplay-viewer --session place.json --screenshot pystdlib-lm-scatter-layer3-head1.png "
                    "--panel scatter --figure")}) {
    INFO(part);
    CHECK(contains(page, part));
  }
  // Every panel in view, and no other.
  for (const PanelFacts& panel : kPanels) {
    INFO(panel.name);
    CHECK(contains(page, "id=\"panel-" + std::string(panel.name) + "\"") ==
          (panel.id != PanelKind::jobs && dashboard.app.area(panel.id).width > 0));
  }
  // The link leads back.
  const std::string text = plain(page);
  const auto begin = text.find("kvreplay://");
  REQUIRE(begin != std::string::npos);
  const ViewLink link = view_link(text.substr(begin, text.find('\'', begin) - begin));
  CHECK(link.run == "pystdlib-lm");
  CHECK(link.dump == fingerprint(dump));
  CHECK(link.panel == "scatter");
  CHECK(std::array{*link.layer, *link.kv_head, *link.row, *link.token, *link.window} ==
        std::array<Index, 5>{3, 1, 1000, 379, 16});
}

TEST_CASE("the commands on a shared page open its place and draw its pictures", "[share][view]") {
  const test::TempDir folder;
  std::string page;
  {
    Dashboard dashboard(kSample, 1000, 700);
    dashboard.app.state().select_head(2, 0);
    dashboard.settle();
    page = plain(shared(dashboard, folder / "place.html"));
  }
  fs::create_directory_symlink(kSample, folder / "pystdlib-lm");
  const auto between = [&](const std::string& begin, const std::string& end) {
    const auto at = page.find(begin);
    REQUIRE(at != std::string::npos);
    return page.substr(at, page.find(end, at) - at);
  };
  std::ofstream(folder / "place.json") << between("{\"cameras\"", "</code>");
  const std::string open = between("kvreplay view '", "</code>") + " --screenshot opened.png",
                    draw = between("kvreplay-viewer --session", "</code>");
  CHECK(count(draw, "\n") >= 3);
  const std::string programs = test::viewer_program().parent_path().string();
  const test::ProcessResult result =
      test::run({"/usr/bin/env", "-C", folder.path(), "PATH=" + programs + ":/usr/bin:/bin", "/bin/sh", "-ec",
                 open + "\n" + draw});
  INFO(result.err);
  CHECK(result.code == 0);
  for (const std::string name :
       {"opened", "pystdlib-lm-text-layer2-head0", "pystdlib-lm-what-if-layer2-head0"})
    CHECK(fs::file_size(folder / (name + ".png")) > 10000);
}

TEST_CASE("a shared page is light and the same from a dark window, which stays dark", "[share]") {
  const test::TempDir folder;
  std::string pages[2];
  for (const bool dark : {false, true}) {
    AppOptions options = Dashboard::options(kSample);
    options.dark = dark;
    options.date = "2030-01-02";
    App app(std::move(options));
    viewer::ScriptedHost host(app, 1000, 700);
    const auto settle = [&] {
      for (int quiet = 0; quiet < 3; quiet = app.settled() ? quiet + 1 : 0) {
        host.frame();
        app.desk().wait_idle(std::chrono::milliseconds(20));
      }
    };
    settle();
    const std::vector<Rgb> before = host.pixels();
    app.share(folder / "place.html");
    settle();
    const std::vector<Rgb> after = host.pixels();
    CHECK(
        std::equal(before.begin(), before.begin() + 600000, after.begin()));  // all but the line at the foot
    pages[dark ? 1 : 0] = test::file_text(folder / "place.html");
  }
  CHECK(contains(pages[0], "2030-01-02"));
  CHECK(pages[0] == pages[1]);
}

TEST_CASE("a shared page names no folder, whatever is open", "[share]") {
  const test::TempDir folder;
  fs::copy(kSample, folder / "copied dump", fs::copy_options::recursive);
  std::string manifest = test::file_text(folder / "copied dump/manifest.json");
  const auto at = manifest.find("\"model\": \"");
  REQUIRE(at != std::string::npos);
  manifest.insert(at + 10, (folder / "models").string() + "/");
  std::ofstream(folder / "copied dump/manifest.json") << manifest;
  REQUIRE(test::run_kvreplay({"tokens", folder / "copied dump", "--out", folder / "results"}).code == 0);
  Dashboard dashboard(folder / "copied dump");
  dashboard.app.open(folder / "results");
  dashboard.settle();
  REQUIRE(dashboard.app.state().runs.size() == 2);
  write_npy(folder / "mine.npy", std::vector<std::size_t>{6, 2, 896}, std::vector<float>(6 * 2 * 896, 1));
  dashboard.app.add_score(user_score("mine=" + (folder / "mine.npy").string()));
  dashboard.settle();
  REQUIRE(dashboard.app.state().scores.size() == 1);
  dashboard.app.state().setting_b.score = "mine";
  dashboard.app.state().pinned.pin(dashboard.app.state().runs[1]);
  dashboard.app.state().setting_a.painted = "keep 1-3";
  dashboard.settle();
  for (const std::size_t run : {0, 1}) {
    Selection next = dashboard.selection();
    next.run = run;
    dashboard.app.state().select(next);
    dashboard.settle();
    const std::string page = shared(dashboard, folder / fmt::format("place{}.html", run));
    check_stands_alone(page, {folder.path(), kSample.parent_path()});
    CHECK(contains(page, "copied dump"));
    CHECK(contains(page, "--score mine=mine.npy"));
    CHECK(contains(page, fingerprint(Dump::open(folder / "copied dump"))));
  }
}

TEST_CASE("Share as page writes under a name that is free, and tells who offers it", "[share]") {
  const test::TempDir folder;
  REQUIRE(test::run_kvreplay({"tokens", kSample, "--out", folder / "results", "--layers", "3"}).code == 0);
  std::vector<fs::path> wrote;
  AppOptions options = Dashboard::options(folder / "results");
  options.wrote = [&](const fs::path& path) { wrote.push_back(path); };
  App app(std::move(options));
  viewer::ScriptedHost host(app, 900, 600);
  const auto settle = [&] {
    for (int quiet = 0; quiet < 3; quiet = app.settled() ? quiet + 1 : 0) {
      host.frame();
      app.desk().wait_idle(std::chrono::milliseconds(20));
    }
  };
  settle();
  app.state().select_head(3, 0);
  settle();
  for (int i = 0; i < 2; ++i) {
    app.perform(ActionId::share_page);
    settle();
  }
  CHECK(wrote == std::vector<fs::path>{folder / "results/results-shared-layer3-head0.html",
                                       folder / "results/results-shared-layer3-head0-2.html"});
  for (const fs::path& path : wrote) CHECK(fs::exists(path));
}

TEST_CASE("a page of two places is not written", "[share]") {
  const test::TempDir folder;
  Dashboard dashboard(kSample, 900, 600);
  dashboard.app.share(folder / "place.html");
  dashboard.host.frame();
  dashboard.app.export_figure(PanelKind::text, folder / "text.png");
  CHECK(contains(dashboard.app.state().message(), "A page is being made"));
  dashboard.app.state().select_head((dashboard.selection().layer + 1) % 6, 0);
  dashboard.settle();
  CHECK(contains(dashboard.app.state().message(), "another place is in view"));
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("kvreplay view --share writes a page; a link to another dump is refused", "[share][view]") {
  const test::TempDir folder;
  const fs::path page = folder / "place.html";
  const test::ProcessResult result =
      test::run_kvreplay({"view", test::sample_dump(), "--share", page, "--layer", "2", "--head", "1",
                          "--token", "5", "--size", "900x600"});
  INFO(result.err);
  REQUIRE(result.code == 0);
  check_stands_alone(test::file_text(page), {kSample.parent_path(), folder.path()});
  CHECK(contains(test::file_text(page), "layer 2, KV head 1"));

  const auto refused = [&](std::vector<std::string> words, const std::string& line) {
    const test::ProcessResult bad = test::run_kvreplay(std::move(words));
    INFO(bad.err);
    CHECK(bad.code == 2);
    CHECK(test::lines(bad.err) == 1);
    CHECK(contains(bad.err, line));
  };
  refused({"view", "--share", page}, "--share: expected a dump or a result folder to show");
  refused({"view", test::sample_dump(), "--share", page / "within.html"}, "place.html");
  const std::string link = text_of(ViewLink{.run = test::sample_dump(), .dump = "0123456789abcdef"});
  refused({"view", link, "--share", page},
          "the link: expected the dump 0123456789abcdef, found 4fa30ac1edacbed7");
}
