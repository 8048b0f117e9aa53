// The contact sheet of all heads.

#include "tests/analysis/kvreplay_program.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer_gl/dashboard.hpp"

#include <set>
#include <string>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::kSample;
using test::OnePanelDashboard;

namespace {

/// The Head map as a sheet.
struct SheetDashboard : OnePanelDashboard {
  explicit SheetDashboard(const std::filesystem::path& path, bool worst_first = false, int width = 900,
                          int height = 600)
      : OnePanelDashboard(PanelKind::heads, path, width, height, 0, 0) {
    app.panel(PanelKind::heads)
        .load({{"sheet_shown", true}, {"sheet", {{"worst_first", worst_first}, {"shown", "attn"}}}});
    settle();
  }
  HeatmapView& sheet() { return *app.panel(PanelKind::heads).heatmap(); }
  /// Clicks the middle of what is `row` of `rows` down and `column` of `columns` across.
  void click_place(int row, int rows, int column, int columns) {
    const ImVec2 low = sheet().map_low(), high = sheet().map_high();
    // A square sheet lies in the middle of a wide map.
    const MatrixSize size{rows * 70 - 6, columns * 70 - 6};
    const ImVec2 from = sheet().pixel_of(0, 0),
                 to = sheet().pixel_of(static_cast<double>(size.rows), static_cast<double>(size.columns));
    REQUIRE(from.x >= low.x - 1);
    REQUIRE(to.x <= high.x + 1);
    host.click(from.x + (to.x - from.x) * (static_cast<float>(column) + 0.3F) / static_cast<float>(columns),
               from.y + (to.y - from.y) * (static_cast<float>(row) + 0.7F) / static_cast<float>(rows));
    host.settle();
    settle();
  }
  /// Heads that were computed for the sheet.
  std::size_t computed() {
    std::set<std::string> titles;
    for (const JobQueue::Done& done : app.queue().log())
      if (done.title.find(", small") != std::string::npos && !done.cancelled) titles.insert(done.title);
    return titles.size();
  }
};

}  // namespace

TEST_CASE("a sheet has every head, and a click selects it", "[sheet]") {
  // 6 layers of 2 heads of 64 x 64 texels in 900 x 600: 4 columns of 3 rows.
  SheetDashboard dashboard(kSample);
  CHECK(dashboard.computed() == 12);
  CHECK(dashboard.failed_job() == "");
  dashboard.click_place(1, 3, 2, 4);
  CHECK(dashboard.selection().layer == 3);
  CHECK(dashboard.selection().kv_head == 0);
  dashboard.click_place(2, 3, 3, 4);
  CHECK(dashboard.selection().layer == 5);
  CHECK(dashboard.selection().kv_head == 1);
}

TEST_CASE("a sheet that is sorted begins with the worst head", "[sheet]") {
  SheetDashboard dashboard(kSample, true);
  REQUIRE(dashboard.app.state().all_ranked);
  const auto order = dashboard.app.state().worst_first;
  dashboard.click_place(0, 3, 0, 4);
  CHECK(std::pair(dashboard.selection().layer, dashboard.selection().kv_head) == order[0]);
  dashboard.click_place(1, 3, 1, 4);
  CHECK(std::pair(dashboard.selection().layer, dashboard.selection().kv_head) == order[5]);
}

TEST_CASE("of a sheet only heads in view are computed", "[sheet]") {
  const test::TempDir folder;
  REQUIRE(
      test::run_kvreplay({"synth", folder / "synth", "--layers", "12", "--prompt", "256", "--decode", "8"})
          .code == 0);
  OnePanelDashboard plain(PanelKind::heads, folder / "synth", 900, 600, 0, 0);
  const DumpShape shape = plain.app.state().run()->shape();
  SheetDashboard whole(folder / "synth");
  CHECK(static_cast<Index>(whole.computed()) == shape.layers * shape.n_kv);

  SheetDashboard part("", false);
  part.app.panel(PanelKind::heads).heatmap()->set_camera(Camera{{0, 0.2}, {0, 0.2}});
  part.app.open(folder / "synth");
  part.settle();
  // The first frame of another matrix shows all of it: so it is zoomed and asked anew.
  part.sheet().set_camera(Camera{{0, 0.1}, {0, 0.1}});
  const Index before = static_cast<Index>(part.computed());
  part.app.panel(PanelKind::heads).load({{"sheet_shown", true}, {"sheet", {{"shown", "value"}}}});
  part.settle();
  CHECK(static_cast<Index>(part.computed()) - before <= 4);
}

TEST_CASE("a sheet is kept in the session, and has a figure", "[sheet]") {
  const test::TempDir folder;
  SheetDashboard dashboard(kSample, true);
  const ReadSession read = session_of_text(text_of(dashboard.app.save()));
  CHECK(read.session.panels["heads"]["sheet_shown"] == true);
  CHECK(read.session.panels["heads"]["sheet"]["worst_first"] == true);
  CHECK(read.session.panels["heads"]["sheet"]["shown"] == "attn");
  const std::vector<Rgb> pixels = dashboard.host.pixels();
  dashboard.app.export_figure(PanelKind::heads, folder / "sheet.png");
  dashboard.settle();
  CHECK(std::filesystem::exists(folder / "sheet.png"));
  CHECK_FALSE(dashboard.app.state().message_is_error());
}
