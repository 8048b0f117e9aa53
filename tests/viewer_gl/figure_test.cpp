// A panel's figure in a file, and the commands and links that show it again.

#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/picture.hpp"
#include "tests/analysis/xml_check.hpp"
#include "tests/support/places.hpp"
#include "tests/support/process.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer_gl/dashboard.hpp"
#include "viewer/app/app.hpp"
#include "viewer/app/screenshot.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::contains;
using test::Dashboard;
using test::kSample;
using test::Picture;

namespace {

namespace fs = std::filesystem;

Picture figure_of(Dashboard& dashboard, PanelKind panel, const fs::path& path) {
  dashboard.app.export_figure(panel, path);
  dashboard.settle();
  INFO(dashboard.app.state().message());
  REQUIRE_FALSE(dashboard.app.state().message_is_error());
  CHECK(contains(dashboard.app.state().message(), "Saved " + fs::absolute(path).string()));
  return Picture(path);
}

bool same(const Picture& a, const Picture& b) {
  return a.width == b.width && a.height == b.height &&
         std::equal(a.pixels.begin(), a.pixels.end(), b.pixels.begin(),
                    [](Rgb x, Rgb y) { return x.r == y.r && x.g == y.g && x.b == y.b; });
}

bool same(const std::vector<Rgb>& a, const std::vector<Rgb>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](Rgb x, Rgb y) { return x.r == y.r && x.g == y.g && x.b == y.b; });
}

std::string clipboard(Dashboard& dashboard) {
  dashboard.host.ui().make_current();
  return ImGui::GetClipboardText();
}

}  // namespace

TEST_CASE("every panel has a figure, twice as fine as it was drawn", "[figure]") {
  const test::TempDir folder;
  for (const PanelFacts& facts : kPanels) {
    INFO(facts.name);
    test::OnePanelDashboard dashboard(facts.id, kSample, 640, 420, 3, 1);
    dashboard.app.state().select_cell(1000, 300);
    dashboard.settle();
    const Area area = dashboard.app.area(facts.id);
    const Picture picture = figure_of(dashboard, facts.id, folder / (std::string(facts.name) + ".png"));
    CHECK(picture.width == static_cast<Index>(2 * area.width));
    // Or higher, so that no list needs to be scrolled.
    CHECK(picture.height >= static_cast<Index>(2 * area.height));
    if (facts.id == PanelKind::text) CHECK(picture.height == static_cast<Index>(2 * area.height));
  }
}

TEST_CASE("a figure has all rows of its legend, however low the panel is", "[figure]") {
  const test::TempDir folder;
  test::OnePanelDashboard low(PanelKind::curves, kSample, 900, 340, 3, 1);
  const Picture small = figure_of(low, PanelKind::curves, folder / "low.png");
  test::OnePanelDashboard high(PanelKind::curves, kSample, 900, 800, 3, 1);
  const Picture large = figure_of(high, PanelKind::curves, folder / "high.png");
  CHECK(small.height > static_cast<Index>(2 * low.app.area(PanelKind::curves).height));
  CHECK(large.height == static_cast<Index>(2 * high.app.area(PanelKind::curves).height));
}

TEST_CASE("a figure leaves the window as it was", "[figure]") {
  const test::TempDir folder;
  Dashboard dashboard(kSample, 900, 600);
  dashboard.app.show(PanelKind::tokens);
  dashboard.settle();
  HeatmapView& map = *dashboard.app.panel(PanelKind::tokens).heatmap();
  map.zoom(3.7);
  dashboard.settle();
  const auto camera = map.camera();
  REQUIRE(camera);
  // Without the status line, which says how much is kept.
  const auto panels = [&] {
    std::vector<Rgb> pixels = dashboard.host.pixels();
    pixels.resize(900 * 570);
    return pixels;
  };
  const std::vector<Rgb> before = panels();
  figure_of(dashboard, PanelKind::tokens, folder / "tokens.png");
  CHECK(map.camera() == camera);
  dashboard.now += std::chrono::seconds(60);  // the message is gone
  dashboard.settle();
  CHECK(same(panels(), before));
}

TEST_CASE("the mouse is not in the figure, the selection is", "[figure]") {
  const test::TempDir folder;
  test::OnePanelDashboard dashboard(PanelKind::tokens, kSample, 640, 420, 3, 1);
  const Picture plain = figure_of(dashboard, PanelKind::tokens, folder / "plain.png");
  const auto [x, y] = dashboard.at(PanelKind::tokens, 0.3F, 0.7F);
  dashboard.host.move_mouse(x, y);
  dashboard.host.settle();
  CHECK(same(figure_of(dashboard, PanelKind::tokens, folder / "hovered.png"), plain));
  dashboard.app.state().select_cell(1000, 300);
  dashboard.settle();
  CHECK_FALSE(same(figure_of(dashboard, PanelKind::tokens, folder / "selected.png"), plain));
}

TEST_CASE("Ctrl+E writes into the result folder under a name that is free", "[figure]") {
  const test::TempDir folder;
  const fs::path results = folder / "results";
  REQUIRE(test::run_kvreplay({"tokens", kSample.string(), "--out", results.string(), "--layers", "3"}).code ==
          0);
  Dashboard dashboard(results, 900, 600);
  dashboard.app.show(PanelKind::heads);
  dashboard.app.state().select_head(3, 1);
  dashboard.settle();
  dashboard.tap({.key = "E", .control = true});
  const fs::path first = results / "results-heads-layer3-head1.png",
                 second = results / "results-heads-layer3-head1-2.png";
  CHECK(contains(dashboard.app.state().message(), "Saved " + first.string()));
  dashboard.tap({.key = "E", .control = true});
  CHECK(contains(dashboard.app.state().message(), "Saved " + second.string()));
  CHECK(same(Picture(first), Picture(second)));
}

TEST_CASE("panels with a plot of the report write it as SVG, the others say so", "[figure]") {
  const test::TempDir folder;
  const fs::path file = folder / "a.svg";
  const std::map<PanelKind, std::string> parts = {{PanelKind::heads, "data-legend=\"39\""},
                                                  {PanelKind::scatter, ">Spearman 0."},
                                                  {PanelKind::curves, ">caote</text>"},
                                                  {PanelKind::decode, ">decoding step</text>"}};
  for (const PanelFacts& facts : kPanels) {
    INFO(facts.name);
    test::OnePanelDashboard dashboard(facts.id, kSample, 640, 420, 3, 1);
    dashboard.settle();
    dashboard.app.export_figure(facts.id, file);
    dashboard.settle();
    INFO(dashboard.app.state().message());
    const auto part = parts.find(facts.id);
    REQUIRE(fs::exists(file) == (part != parts.end()));
    CHECK(dashboard.app.state().message_is_error() == (part == parts.end()));
    if (part == parts.end()) {
      CHECK(contains(dashboard.app.state().message(), "exported as PNG"));
      continue;
    }
    const std::string svg = test::file_text(file);
    CHECK(test::xml_fault(svg).empty());
    CHECK(contains(svg, part->second));
    CHECK(contains(svg, kSample.string()));  // where it comes from
    fs::remove(file);
  }
}

TEST_CASE("what cannot be computed or written makes no figure", "[figure]") {
  const test::TempDir folder;
  Dashboard dashboard(kSample, 900, 600);
  std::ofstream(fs::path(folder / "a file")) << "x";
  dashboard.app.export_figure(PanelKind::heads, fs::path(folder / "a file") / "x.png");
  dashboard.settle();
  CHECK(dashboard.app.state().message_is_error());
  CHECK(contains(dashboard.app.state().message(), "a file"));

  fs::copy(kSample, folder / "dump", fs::copy_options::recursive);
  std::fstream array(fs::path(folder / "dump") / "layer_00/v.npy",
                     std::ios::in | std::ios::out | std::ios::binary);
  array.seekp(-2, std::ios::end);
  array.write("\xff\x7f", 2);  // a NaN
  array.close();
  Dashboard bad(folder / "dump", 900, 600);
  bad.app.export_figure(PanelKind::heads, folder / "heads.png");
  bad.settle();
  CHECK(bad.app.state().message_is_error());
  CHECK(contains(bad.app.state().message(), "v.npy"));
  CHECK_FALSE(fs::exists(folder / "heads.png"));
}

TEST_CASE("the copied command draws the very same figure", "[figure]") {
  const test::TempDir folder;
  const fs::path dump = folder / "a dump";
  fs::copy(kSample, dump, fs::copy_options::recursive);
  const fs::path before = fs::current_path();
  fs::current_path(fs::path(folder / "."));
  Dashboard dashboard(dump, 900, 600);
  dashboard.app.show(PanelKind::tokens);
  dashboard.app.state().select_head(2, 1);
  dashboard.app.state().select_cell(900, 123);
  dashboard.app.state().show_kept = true;
  dashboard.app.state().setting_a.base = "tova";
  dashboard.app.perform(ActionId::toggle_theme);
  dashboard.settle();
  dashboard.app.panel(PanelKind::tokens).heatmap()->zoom(2.3);
  dashboard.settle();
  const Picture shown = figure_of(dashboard, PanelKind::tokens, folder / "shown.png");
  dashboard.perform(ActionId::copy_drawing_command);
  const std::string command = clipboard(dashboard);
  fs::current_path(before);
  INFO(command);
  const std::string programs = test::viewer_program().parent_path().string();
  const test::ProcessResult result =
      test::run({"/usr/bin/env", "PATH=" + programs + ":/usr/bin:/bin", "/bin/sh", "-c", command});
  INFO(result.err);
  REQUIRE(result.code == 0);
  const fs::path drawn = fs::path(folder / ".") / "a dump-tokens-layer2-head1.png";
  CHECK(same(Picture(drawn), shown));
}

TEST_CASE("the copied command measures what What if shows", "[figure]") {
  Dashboard dashboard(kSample, 900, 600);
  dashboard.app.state().setting_a.compensation = Compensation::fit;
  dashboard.perform(ActionId::copy_measuring_command);
  const std::string lines = clipboard(dashboard);
  CHECK(contains(lines, "kvreplay evict " + kSample.string() +
                            " --out results/pystdlib-lm-A --policy snapkv --keep 20% --compensate fit\n"));
  CHECK(contains(lines, " --out results/pystdlib-lm-B --policy snapkv+joint --keep 20%\n"));
}

TEST_CASE("a copied link opens at the same place", "[figure]") {
  Dashboard dashboard(kSample, 900, 600);
  dashboard.app.show(PanelKind::scatter);
  dashboard.app.state().select_head(4, 0);
  dashboard.app.state().select_cell(1000, 301);
  dashboard.app.state().comparison = {TokenMetric::joint, TokenMetric::exact_joint, 16};
  dashboard.settle();
  dashboard.perform(ActionId::copy_link);
  const ViewLink link = view_link(clipboard(dashboard));

  ScreenshotOptions options;
  Dashboard other("", 900, 600);
  other.app.open(follow(link, options));
  select_at_start(other.app, options);
  other.settle();
  CHECK(other.selection() == dashboard.selection());
  CHECK(other.app.state().comparison == dashboard.app.state().comparison);
  CHECK(other.app.layout().in_front(PanelKind::scatter));
  CHECK_FALSE(other.app.layout().maximised());
  CHECK(other.app.focused() == PanelKind::scatter);
}

TEST_CASE("a bad link is one line on the command line", "[figure]") {
  const test::TempDir folder;
  const auto refused = [&](const std::string& link, const char* word) {
    const test::ProcessResult result =
        test::run({test::viewer_program(), link, "--screenshot", (folder / "none.png")});
    INFO(result.err);
    CHECK(result.code == 2);
    CHECK(test::lines(result.err) == 1);
    CHECK(contains(result.err, word));
    CHECK_FALSE(fs::exists(folder / "none.png"));
  };
  const std::string run = "kvreplay://open?run=" + kSample.string();
  refused("kvreplay://open?layer=3", "run=PATH");
  refused(run + "&panel=heat", "'heat'");
  refused(run + "&layer=77", "77");
  refused(run + "&score=best", "'best'");
  refused("kvreplay://open?run=/nonexistent", "/nonexistent");
}
