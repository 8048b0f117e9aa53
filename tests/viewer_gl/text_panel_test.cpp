// The prompt as text: what is struck, where a click and a search lead, and what is not drawn.

#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer_gl/dashboard.hpp"
#include "tests/viewer_gl/drawn_frame.hpp"
#include "viewer/model/token_text.hpp"
#include "viewer/panels/text/text_view.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::Dashboard;
using test::kSample;

namespace {

struct TextBoard : test::OnePanelDashboard {
  explicit TextBoard(const std::filesystem::path& dump = kSample)
      : OnePanelDashboard(PanelKind::text, dump, 900, 600, 3, 1) {}

  /// The column of the exported table, a field a token.
  std::vector<std::string> column(std::size_t number) {
    std::istringstream lines(csv());
    std::string line;
    std::getline(lines, line);
    std::vector<std::string> fields;
    while (std::getline(lines, line)) {
      // Behind the text, which may hold commas, there are none.
      std::vector<std::size_t> commas;
      for (std::size_t at = 0; at < line.size(); ++at)
        if (line[at] == ',') commas.push_back(at);
      const std::size_t last = commas.size() - 4 + number - 2;
      fields.push_back(line.substr(commas[last] + 1, commas[last + 1] - commas[last] - 1));
    }
    return fields;
  }
  Index kept() {
    const auto fields = column(4);
    return std::count(fields.begin(), fields.end(), "1");
  }
  /// The first token that is hovered going down at a share of the width, from a share of the height.
  std::optional<Index> token_at(float x, float y) {
    const auto [px, py] = at(kind, x, y);
    host.move_mouse(px, py);
    host.settle(2);
    return app.state().hover.token;
  }
  void set(const nlohmann::json& settings) {
    app.panel(kind).load(settings);
    settle();
  }
  void type(const char* text) {
    host.type(text);
    host.settle();
    settle();
  }
  std::string chosen_text() {
    std::string text;
    for (const Index token : selection().tokens) text += app.state().run()->labels()->text[token];
    return text;
  }
};

}  // namespace

TEST_CASE("as the budget moves, words vanish from the text", "[text]") {
  TextBoard board;
  const auto ranks = board.column(3);
  CHECK(std::ssize(ranks) == board.app.state().run()->shape().l);
  CHECK(std::count(ranks.begin(), ranks.end(), "1") == 1);
  board.app.state().budget.sigma_budget = false;
  for (const Index budget : {100, 500, 896}) {
    board.app.state().budget.budget = budget;
    const auto before = board.host.pixels();
    board.settle();
    CHECK(board.kept() == budget);
    CHECK_FALSE(board.host.pixels() == before);
  }
  // The other setting, while x is held.
  board.app.state().setting_b.linked = board.app.state().setting_b.sigma_budget = false;
  board.app.state().setting_b.budget = 50;
  board.host.press_key({"X"});
  board.host.settle();
  board.settle();
  CHECK(board.kept() == 50);
  board.host.release_key({"X"});
  board.host.settle();
  board.settle();
  CHECK(board.kept() == 896);
  CHECK(board.failed_job().empty());
}

TEST_CASE("over a layer and over all heads values and kept sets are summed", "[text]") {
  TextBoard board;
  const Index l = board.app.state().run()->shape().l;
  std::vector<double> sum(l, 0.0);
  std::vector<Index> kept(l, 0);
  for (const Index head : {0, 1}) {
    board.app.state().select_head(3, head);
    board.settle();
    const auto values = board.column(2), is_kept = board.column(4);
    for (Index p = 0; p < l; ++p) {
      sum[p] += std::stod(values[p]);
      kept[p] += is_kept[p] == "1" ? 1 : 0;
    }
  }
  board.set({{"scope", "layer"}});
  auto values = board.column(2), counts = board.column(4);
  for (Index p = 0; p < l; ++p) {
    CHECK(std::stod(values[p]) == Approx(sum[p]).epsilon(1e-9));
    CHECK(std::stoi(counts[p]) == kept[p]);
  }
  const std::vector<std::string> of_layer = values;
  board.set({{"scope", "all"}});
  values = board.column(2);
  counts = board.column(4);
  Index all = 0, of_budget = 0;
  for (Index p = 0; p < l; ++p) {
    CHECK(std::stod(values[p]) >= std::stod(of_layer[p]) * (1 - 1e-9));
    CHECK(std::stoi(counts[p]) >= kept[p]);
    all += std::stoi(counts[p]);
    of_budget += kept[p];
  }
  CHECK(all == of_budget * 6);  // every head keeps as many
  CHECK(board.failed_job().empty());
}

TEST_CASE("a click in the text is the one selection, a drag chooses tokens", "[text]") {
  TextBoard board;
  const auto under = board.token_at(0.1F, 0.5F);
  REQUIRE(under.has_value());
  board.app.state().select_cell(1000, 3);
  board.settle();
  // Selected elsewhere, the first token is in view: the text stays where it was.
  CHECK(board.token_at(0.1F, 0.5F) == under);
  board.click(board.kind, 0.1F, 0.5F);
  CHECK(board.selection().token == under);
  CHECK(board.selection().row == 1000);

  const auto [x, y] = board.at(board.kind, 0.1F, 0.5F);
  const auto last = board.token_at(0.3F, 0.5F);
  REQUIRE(last.has_value());
  board.host.drag(x, y, board.at(board.kind, 0.3F, 0.5F).first, y);
  board.host.settle();
  board.settle();
  const std::vector<Index>& chosen = board.selection().tokens;
  REQUIRE(std::ssize(chosen) == *last - *under + 1);
  CHECK(chosen.front() == *under);
  CHECK(chosen.back() == *last);
  CHECK(board.selection().token == under);  // a drag is no click
}

TEST_CASE("the text goes to what another panel selects", "[text]") {
  TextBoard board;
  const auto first = board.token_at(0.05F, 0.5F);
  board.app.state().select_cell(std::nullopt, 800);
  board.settle();
  const auto now = board.token_at(0.05F, 0.5F);
  REQUIRE((first && now));
  CHECK(*first < 300);
  CHECK(std::abs(*now - 800) < 120);
  // Wider, and what stood first is still in view.
  board.host.resize(1200, 600, 1);
  board.host.settle();
  board.settle();
  const auto wide = board.token_at(0.05F, 0.5F);
  REQUIRE(wide);
  CHECK(std::abs(*wide - 800) < 200);
}

TEST_CASE("Ctrl+F finds tokens by what they say", "[text][find]") {
  TextBoard board;
  board.app.layout().maximise(std::nullopt);
  board.app.show(PanelKind::inspector);
  board.app.layout().show(PanelKind::tokens);
  board.settle();
  board.tap({"F", true});
  CHECK(board.app.layout().in_front(PanelKind::text));
  board.type("hash");
  const std::optional<Index> first = board.selection().token;
  REQUIRE(first.has_value());
  REQUIRE(!board.selection().tokens.empty());
  CHECK(board.selection().tokens.front() == *first);
  const auto has = [&] {
    std::string text = board.chosen_text();
    for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return text.find("hash") != std::string::npos;
  };
  CHECK(has());
  board.tap({"Enter"});
  const std::optional<Index> second = board.selection().token;
  CHECK(second > first);
  CHECK(has());
  board.tap({"Enter"});
  CHECK(board.selection().token > second);
  board.host.tap_key({"Enter", false, true});
  board.host.settle();
  board.settle();
  CHECK(board.selection().token == second);
  // Each match is one step.
  board.perform(ActionId::undo);
  CHECK(board.selection().token > second);
  board.perform(ActionId::undo);
  CHECK(board.selection().token == second);

  // Escape closes the bar and leaves the selection; the next one clears it.
  board.tap({"Escape"});
  CHECK(board.selection().token == second);
  board.tap({"Escape"});
  CHECK_FALSE(board.selection().token.has_value());
}

TEST_CASE("of a question the needles and the answer are marked, and a button goes from needle to needle",
          "[text]") {
  const test::TempDir temp;
  std::filesystem::copy(kSample, temp.path(), std::filesystem::copy_options::recursive);
  auto manifest = nlohmann::json::parse(test::file_text(temp.path() / "manifest.json"));
  manifest["task"] = {
      {"name", "niah"},
      {"question", "Which number?"},
      {"spans", {{"needles", {{20, 24}, {600, 606}}}, {"question", {896, 900}}, {"answer", {902, 904}}}}};
  test::write_file(temp.path() / "manifest.json", manifest.dump());
  TextBoard plain;
  TextBoard board(temp.path());
  const auto drawn = [](const std::string& text) {
    for (const test::DrawnText& one : test::drawn_texts())
      if (one.text == text) return std::optional(one.area);
    return std::optional<Area>();
  };
  const std::optional<Area> button = drawn("Needle");
  REQUIRE(button);
  CHECK(board.host.pixels() != plain.host.pixels());
  for (const Index first : {20, 600, 20}) {
    board.host.click(button->x + button->width / 2, button->y + button->height / 2);
    board.host.settle();
    board.settle();
    REQUIRE_FALSE(board.selection().tokens.empty());
    CHECK(board.selection().tokens.front() == first);
    CHECK(board.selection().tokens.back() == (first == 20 ? 23 : 605));
  }
  CHECK(board.failed_job().empty());
}

TEST_CASE("Escape closes the search also where the text has the keyboard", "[text][find]") {
  TextBoard board;
  board.tap({"F", true});
  board.type("hash");
  board.click(board.kind, 0.1F, 0.6F);
  const auto token = board.selection().token;
  board.tap({"Escape"});
  CHECK(board.selection().token == token);
  board.tap({"Escape"});
  CHECK_FALSE(board.selection().token.has_value());
}

TEST_CASE("the text's settings are kept in a session", "[text]") {
  TextBoard board;
  board.set({{"metric", "oracle_importance"}, {"by", "rank"}, {"scope", "layer"}});
  CHECK(board.app.panel(board.kind).save() ==
        nlohmann::json({{"metric", "oracle_importance"}, {"by", "rank"}, {"scope", "layer"}}));
  board.set({{"metric", "none"}, {"by", 3}, {"scope", "world"}});
  CHECK(board.app.panel(board.kind).save()["metric"] == "oracle_importance");
  CHECK(board.csv().starts_with("token,text,oracle_importance,rank,kept,heads\n"));
}

TEST_CASE("results without their dump tint their positions, over the layers that they have", "[text]") {
  const test::TempDir folder;
  std::filesystem::copy(kSample, folder / "dump", std::filesystem::copy_options::recursive);
  REQUIRE(test::run_kvreplay({"tokens", folder / "dump", "--out", folder / "r", "--layers", "1,3",
                              "--metrics", "attn", "--quiet"})
              .code == 0);
  std::filesystem::remove_all(folder / "dump");
  test::OnePanelDashboard board(PanelKind::text, folder / "r", 700, 400, 3, 1);
  const auto tinted = [&](const char* scope) {
    board.app.panel(board.kind).load({{"scope", scope}});
    board.settle();
    double sum = 0;
    std::istringstream lines(board.csv());
    std::string line;
    std::getline(lines, line);
    CHECK(line == "token,text,attn,rank,kept,heads");
    while (std::getline(lines, line)) sum += std::stod(line.substr(line.find(",,") + 2));
    return sum;
  };
  // Each row of each query head pays 1 in all.
  const double of_head = tinted("head"), of_layer = tinted("layer"), of_all = tinted("all");
  CHECK(of_layer == Approx(2 * of_head).epsilon(1e-4));
  CHECK(of_all == Approx(4 * of_head).epsilon(1e-4));
  // Layer 0, where it opened, is not among them.
  for (const JobQueue::Done& done : board.app.queue().log())
    CHECK(done.error.find("of every token") == std::string::npos);
}
