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

}  // namespace

TEST_CASE("panels look as they were looked at", "[golden]") {
  const std::vector<std::pair<PanelKind, bool>> pictures = {{PanelKind::tokens, false},
                                                            {PanelKind::heads, true},
                                                            {PanelKind::channels, false},
                                                            {PanelKind::text, false},
                                                            {PanelKind::wrongly_evicted, true}};
  for (const auto& each : pictures) {
    const std::string name = std::string(name_of(each.first)) + (each.second ? "-light.png" : "-dark.png");
    INFO(name);
    const std::vector<Rgb> got = picture_of(each.first, each.second);
    if (std::getenv("KVREPLAY_WRITE_GOLDEN") != nullptr) write_picture(kGolden / name, got, kWidth, kHeight);
    const Difference found = difference(got, test::Picture(kGolden / name).pixels);
    if (found.share > kShare) {
      const fs::path where = fs::temp_directory_path() / ("kvreplay-difference-" + name);
      if (!found.picture.empty()) write_picture(where, found.picture, kWidth, kHeight);
      FAIL_CHECK(100 * found.share << " % of the pixels differ; see " << where.string());
    }
  }
}

TEST_CASE("a broken shader does not pass for the golden pictures", "[golden]") {
  std::string broken = heatmap_fragment_source();
  const std::string right = "(ln(value / low) - start) / span";
  REQUIRE(broken.find(right) != std::string::npos);
  broken.replace(broken.find(right), right.size(), "(ln(value / low) - start) / (2.0 * span)");
  const std::vector<Rgb> got = picture_of(PanelKind::tokens, false, broken);
  CHECK(difference(got, test::Picture(kGolden / "tokens-dark.png").pixels).share > 4 * kShare);
}
