// Whole panels against pictures that were looked at. To make them anew after a change of looks:
//   KVREPLAY_WRITE_GOLDEN=1 kvreplay_viewer_gl_tests "[golden]"

#include "tests/analysis/picture.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer_gl/dashboard.hpp"
#include "viewer/gl/heatmap_renderer.hpp"
#include "viewer/gl/heatmap_shader.hpp"
#include "viewer/gl/picture.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::Dashboard;
using test::kSample;

namespace {

namespace fs = std::filesystem;

const fs::path kGolden = fs::path(KVREPLAY_SOURCE_DIR) / "tests" / "golden" / "viewer";

constexpr int kWidth = 640, kHeight = 400;
/// Levels of 255 that a colour may be off: renderers round differently, and edges of letters with them.
constexpr int kLevels = 24;
/// Share of pixels that may be farther off.
constexpr double kShare = 0.004;

/// What of two pictures differs, and by how much: black where they agree.
struct Difference {
  double share = 1;
  std::vector<Rgb> picture;
};

Difference difference(const std::vector<Rgb>& got, const std::vector<Rgb>& want) {
  Difference found;
  if (got.size() != want.size()) return found;
  std::size_t off = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto apart = [](std::uint8_t a, std::uint8_t b) {
      return static_cast<std::uint8_t>(std::abs(a - b));
    };
    const Rgb d{apart(got[i].r, want[i].r), apart(got[i].g, want[i].g), apart(got[i].b, want[i].b)};
    if (std::max({d.r, d.g, d.b}) > kLevels) ++off;
    found.picture.push_back(d);
  }
  found.share = static_cast<double>(off) / static_cast<double>(got.size());
  return found;
}

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

void check_picture(const std::string& name, const std::vector<Rgb>& got, int width, int height) {
  INFO(name);
  if (std::getenv("KVREPLAY_WRITE_GOLDEN") != nullptr) write_picture(kGolden / name, got, width, height);
  const Difference found = difference(got, test::Picture(kGolden / name).pixels);
  if (found.share <= kShare) return;
  const fs::path where = fs::temp_directory_path() / ("kvreplay-difference-" + name);
  if (!found.picture.empty()) write_picture(where, found.picture, width, height);
  FAIL_CHECK(100 * found.share << " % of the pixels differ; see " << where.string());
}

}  // namespace

TEST_CASE("panels look as they were looked at", "[golden]") {
  const std::vector<std::pair<PanelKind, bool>> pictures = {
      {PanelKind::tokens, false}, {PanelKind::heads, true}, {PanelKind::channels, false}};
  for (const auto& each : pictures) {
    const std::string name = std::string(name_of(each.first)) + (each.second ? "-light.png" : "-dark.png");
    check_picture(name, picture_of(each.first, each.second), kWidth, kHeight);
  }
}

TEST_CASE("a sheet of all heads and a figure look as they were looked at", "[golden]") {
  test::OnePanelDashboard dashboard(PanelKind::heads, kSample, kWidth, kHeight, 3, 1);
  dashboard.app.panel(PanelKind::heads).load({{"sheet_shown", true}});
  dashboard.settle();
  check_picture("heads-sheet-dark.png", dashboard.host.pixels(), kWidth, kHeight);

  const test::TempDir folder;
  dashboard.app.export_figure(PanelKind::heads, folder / "figure.png");
  dashboard.settle();
  test::Picture figure(folder / "figure.png");
  // Without its foot, which says where the dump lies and what day it is.
  const Index height = figure.height - 90;
  figure.pixels.resize(static_cast<std::size_t>(figure.width * height));
  check_picture("heads-sheet-figure.png", figure.pixels, static_cast<int>(figure.width),
                static_cast<int>(height));
}

TEST_CASE("a broken shader does not pass for the golden pictures", "[golden]") {
  std::string broken = heatmap_fragment_source();
  const std::string right = "(ln(value / low) - start) / span";
  REQUIRE(broken.find(right) != std::string::npos);
  broken.replace(broken.find(right), right.size(), "(ln(value / low) - start) / (2.0 * span)");
  const std::vector<Rgb> got = picture_of(PanelKind::tokens, false, broken);
  CHECK(difference(got, test::Picture(kGolden / "tokens-dark.png").pixels).share > 4 * kShare);
}
