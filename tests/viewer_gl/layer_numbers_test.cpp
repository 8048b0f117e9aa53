// A dump of some of the model's layers says the model's numbers on screen, and the dump's own in links.

#include "analysis/results/view_link.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer_gl/dashboard.hpp"
#include "tests/viewer_gl/drawn_frame.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <imgui.h>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::OnePanelDashboard;

namespace {

void make_some_layers(const std::filesystem::path& dump) {
  test::succeed({"synth", dump.string(), "--layers", "3", "--prompt", "48", "--decode", "4"});
  auto manifest = nlohmann::json::parse(test::file_text(dump / "manifest.json"));
  manifest["layers"] = {1, 14, 28};
  test::write_file(dump / "manifest.json", manifest.dump());
}

/// Texts that were drawn last within an area.
std::vector<std::string> texts_in(float low_x, float low_y, float high_x, float high_y) {
  std::vector<std::string> found;
  for (const test::DrawnText& one : test::drawn_texts())
    if (one.area.x >= low_x && one.area.x < high_x && one.area.y >= low_y && one.area.y < high_y)
      found.push_back(one.text);
  return found;
}

bool has(const std::vector<std::string>& texts, const std::string& wanted) {
  return std::any_of(texts.begin(), texts.end(),
                     [&](const std::string& one) { return one.find(wanted) != std::string::npos; });
}

}  // namespace

TEST_CASE("the menu bar, the head map and what is pointed at say the model's layers", "[layer_numbers]") {
  const test::TempDir folder;
  make_some_layers(folder / "dump");
  OnePanelDashboard panel(PanelKind::heads, folder / "dump", 900, 600, 1, 0);
  CHECK(has(texts_in(0, 0, 900, 26), "14"));
  const HeatmapView& map = *panel.app.panel(PanelKind::heads).heatmap();
  const std::vector<std::string> rows =
      texts_in(map.map_low().x - 40, map.map_low().y - 8, map.map_low().x, map.map_high().y);
  CHECK(rows == std::vector<std::string>{"1", "14", "28"});
  // The table has every layer twice, once a head.
  const std::vector<std::string> all = texts_in(0, 40, 900, 600);
  CHECK(std::count(all.begin(), all.end(), "14") >= 3);
  CHECK(std::count(all.begin(), all.end(), "28") >= 3);
  const ImVec2 at = map.pixel_of(2.5, 1.5);
  panel.host.move_mouse(at.x, at.y);
  panel.host.settle();
  CHECK(has(texts_in(0, 0, 900, 600), "layer28,KVhead1"));
  panel.perform(ActionId::next_layer);
  CHECK(panel.selection().layer == 2);
  CHECK(has(texts_in(0, 0, 900, 26), "28"));
  CHECK(panel.failed_job().empty());
}

TEST_CASE("the budgets' map and its tooltip name the same layer", "[layer_numbers]") {
  const test::TempDir folder;
  make_some_layers(folder / "dump");
  OnePanelDashboard panel(PanelKind::budgets, folder / "dump", 1100, 700, 1, 0);
  bool named = false;
  for (float y = 0.15F; y < 0.95F && !named; y += 0.02F)
    for (float x = 0.05F; x < 0.6F && !named; x += 0.03F) {
      const auto [px, py] = panel.at(panel.kind, x, y);
      panel.host.move_mouse(px, py);
      panel.host.settle(2);
      const std::vector<std::string> all = texts_in(0, 0, 1100, 700);
      CHECK_FALSE(has(all, "layer2,KVhead"));
      named = has(all, "layer28,KVhead");
    }
  CHECK(named);
}

TEST_CASE("jobs, exports and links of such a dump", "[layer_numbers]") {
  const test::TempDir folder;
  make_some_layers(folder / "dump");
  test::succeed({"tokens", folder / "dump", "--out", folder / "r", "--quiet"});
  OnePanelDashboard panel(PanelKind::tokens, folder / "r", 900, 600, 1, 1);
  const auto log = panel.app.queue().log();
  CHECK(std::any_of(log.begin(), log.end(), [](const JobQueue::Done& one) {
    return one.title.find("layer 14 head 1") != std::string::npos;
  }));
  CHECK(std::none_of(log.begin(), log.end(), [](const JobQueue::Done& one) {
    return one.title.find("layer 2 ") != std::string::npos || one.title.find("layer 0") != std::string::npos;
  }));
  panel.app.show(PanelKind::inspector);  // asks for the least budgets of a token
  panel.app.layout().maximise(PanelKind::inspector);
  panel.app.state().select_cell(47, 20);
  panel.settle();
  const auto least = panel.app.queue().log();
  CHECK(std::any_of(least.begin(), least.end(), [](const JobQueue::Done& one) {
    return one.title.starts_with("Budgets of ") && one.title.ends_with(", layer 14 head 1");
  }));
  panel.app.layout().maximise(PanelKind::tokens);
  panel.settle();
  panel.app.focus(PanelKind::heads);
  panel.perform(ActionId::export_csv);
  CHECK(std::filesystem::exists(folder / "r/r-heads-layer14-head1.csv"));
  panel.perform(ActionId::copy_link);
  panel.host.ui().make_current();
  const ViewLink link = view_link(ImGui::GetClipboardText());
  CHECK(link.layer == 1);  // as --layer, and --layers of the commands
  CHECK(link.kv_head == 1);
}

TEST_CASE("the inspector finds the same layer in a run that has others", "[layer_numbers]") {
  const test::TempDir folder;
  make_some_layers(folder / "some");
  test::succeed({"synth", folder / "all", "--layers", "16", "--prompt", "48", "--decode", "4"});
  OnePanelDashboard panel(PanelKind::inspector, folder / "some", 900, 1400, 1, 0);
  panel.app.open(folder / "all");
  panel.settle();
  CHECK(panel.selection().run == 1);
  CHECK(panel.selection().layer == 14);
  panel.app.state().select_head(14, 0);
  panel.app.state().select_cell(47, 20);
  panel.settle();
  CHECK(panel.failed_job().empty());
  const auto rows = test::cells_of(panel.csv());
  std::vector<std::string> layers;  // by run
  for (const auto& row : rows)
    if (row[0] == "entry" && row[7] == "logit") layers.push_back(row[1] + " " + row[2]);
  CHECK(layers == std::vector<std::string>{"some 1", "all 14"});
  panel.app.state().select_head(3, 0);
  panel.app.state().select_cell(47, 20);
  panel.settle();
  CHECK(panel.failed_job().empty());
  CHECK(has(texts_in(0, 0, 900, 1400), "some:nolayer3"));
  panel.app.state().select(Selection());
  panel.app.state().select_head(1, 0);
  panel.app.state().select_cell(47, 20);
  panel.perform(ActionId::pin_selection);
  CHECK(has(texts_in(0, 0, 900, 1400), "L14H0"));
}
