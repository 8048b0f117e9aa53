// Whole panels against pictures that were looked at. To make them anew after a change of looks:
//   KVREPLAY_WRITE_GOLDEN=1 kvreplay_viewer_gl_tests "[golden]"

#include "tests/support/temp_dir.hpp"
#include "tests/viewer_gl/dashboard.hpp"
#include "tests/viewer_gl/golden.hpp"
#include "tests/viewer_gl/halved_keys.hpp"
#include "viewer/gl/heatmap_renderer.hpp"

#include <memory>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::Dashboard;
using test::kSample;

namespace {

constexpr int kWidth = 640, kHeight = 400;

std::vector<Rgb> picture_of(PanelKind panel, bool light, const std::string& fragment_source = {}) {
  Dashboard dashboard("", kWidth, kHeight);
  std::shared_ptr<const HeatmapProgram> program;
  if (!fragment_source.empty()) {
    program = std::make_shared<const HeatmapProgram>(fragment_source);
    use_heatmap_program(program);
  }
  dashboard.app.open(kSample);
  dashboard.settle();
  dashboard.app.layout().maximise(panel);
  dashboard.app.state().select_head(3, 1);
  dashboard.app.state().select_cell(1000, 300);
  if (light) dashboard.app.perform(ActionId::toggle_theme);
  dashboard.settle();
  return dashboard.host.pixels();
}

}  // namespace

TEST_CASE("panels look as they were looked at", "[golden]") {
  const std::vector<std::pair<PanelKind, bool>> pictures = {{PanelKind::tokens, false},
                                                            {PanelKind::heads, true},
                                                            {PanelKind::channels, false},
                                                            {PanelKind::text, false}};
  for (const auto& each : pictures) {
    const std::string name = std::string(name_of(each.first)) + (each.second ? "-light.png" : "-dark.png");
    test::check_golden(name, picture_of(each.first, each.second), kWidth, kHeight);
  }
}

TEST_CASE("the list of evicted tokens looks as it was looked at", "[golden]") {
  test::OnePanelDashboard dashboard(PanelKind::scatter, kSample, kWidth, kHeight, 3, 1);
  dashboard.app.panel(PanelKind::scatter).load({{"show_evicted", true}, {"axes", "rank"}});
  dashboard.app.perform(ActionId::toggle_theme);
  dashboard.settle();
  test::check_golden("scatter-evicted-light.png", dashboard.host.pixels(), kWidth, kHeight);
}

TEST_CASE("a sheet of all heads and a figure look as they were looked at", "[golden]") {
  test::OnePanelDashboard dashboard(PanelKind::heads, kSample, kWidth, kHeight, 3, 1);
  dashboard.app.panel(PanelKind::heads).load({{"sheet_shown", true}});
  dashboard.settle();
  test::check_golden("heads-sheet-dark.png", dashboard.host.pixels(), kWidth, kHeight);

  const test::TempDir folder;
  dashboard.app.export_figure(PanelKind::heads, folder / "figure.png");
  dashboard.settle();
  test::Picture figure(folder / "figure.png");
  // Without its foot, which says where the dump lies and what day it is.
  const Index height = figure.height - 90;
  figure.pixels.resize(static_cast<std::size_t>(figure.width * height));
  test::check_golden("heads-sheet-figure.png", figure.pixels, static_cast<int>(figure.width),
                     static_cast<int>(height));
}

TEST_CASE("two runs in one plot look as they were looked at", "[golden]") {
  const test::TempDir folder;
  const std::filesystem::path other = test::halved_keys(folder);
  for (const PanelKind panel : {PanelKind::curves, PanelKind::scatter}) {
    test::OnePanelDashboard dashboard(panel, kSample, kWidth, kHeight, 3, 1);
    dashboard.perform(ActionId::pin_run);
    dashboard.app.open(other);
    dashboard.settle();
    Selection second = dashboard.selection();
    second.run = 1;
    second.token = 300;
    second.tokens = {100, 101, 102, 103, 104, 105, 106, 107};
    dashboard.app.state().select(second);
    const bool light = panel == PanelKind::scatter;
    if (light) dashboard.app.perform(ActionId::toggle_theme);
    dashboard.settle();
    test::check_golden(std::string(name_of(panel)) + "-pinned" + (light ? "-light.png" : "-dark.png"),
                       dashboard.host.pixels(), kWidth, kHeight);
  }
}

TEST_CASE("a broken shader does not pass for the golden pictures", "[golden]") {
  std::string broken = heatmap_fragment_source();
  const std::string right = "(ln(value / low) - start) / span";
  REQUIRE(broken.find(right) != std::string::npos);
  broken.replace(broken.find(right), right.size(), "(ln(value / low) - start) / (2.0 * span)");
  const std::vector<Rgb> got = picture_of(PanelKind::tokens, false, broken);
  CHECK(test::golden_difference(got, test::Picture(test::kGolden / "tokens-dark.png").pixels).share >
        4 * test::kGoldenShare);
}
