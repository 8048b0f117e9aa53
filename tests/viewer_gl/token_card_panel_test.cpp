// The token's card in the Inspector by hand, and the budget in Score against exact.

#include "tests/analysis/kvreplay_program.hpp"
#include "tests/data/small_dump.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer_gl/dashboard.hpp"
#include "tests/viewer_gl/drawn_frame.hpp"
#include "viewer/questions/score_curves.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::kSample;

namespace {

struct Card : test::OnePanelDashboard {
  explicit Card(const std::filesystem::path& path = kSample, Index layer = 3, Index kv_head = 1)
      : OnePanelDashboard(PanelKind::inspector, path, 420, 900, layer, kv_head) {}
  void select(std::optional<Index> row, std::optional<Index> token) {
    app.state().select_cell(row, token);
    settle();
  }
  /// The rows of the exported table of one kind and quantity.
  std::vector<std::vector<std::string>> rows(const std::string& kind, const std::string& quantity) {
    std::vector<std::vector<std::string>> found;
    for (const auto& row : test::cells_of(csv()))
      if (row.size() > 8 && row[0] == kind && row[7] == quantity) found.push_back(row);
    return found;
  }
  /// Whether a text is in view that has this in it, spaces aside, which are not drawn.
  static bool shows(std::string part) {
    std::string all;
    for (const test::DrawnText& one : test::drawn_texts()) all += one.text;
    std::erase(all, ' ');
    std::erase(part, ' ');
    return all.find(part) != std::string::npos;
  }
  /// Clicks down the panel until `done`.
  template <class Done>
  bool click_until(float from, const Done& done) {
    for (float y = from; y < 0.98F; y += 0.012F) {
      click(kind, 0.2F, y);
      if (done()) return true;
    }
    return false;
  }
};

}  // namespace

TEST_CASE("a click on the card's first reader selects the query that reads the token most", "[token_card]") {
  Card card;
  card.select({}, 379);
  CHECK(Card::shows("Removing it alone costs"));
  CHECK(Card::shows("Kept down to a budget of"));
  double most = -1;
  Index reader = -1;
  for (const auto& row : card.rows("reader", "weight"))
    if (std::stod(row[8]) > most) {
      most = std::stod(row[8]);
      reader = std::stoi(row[5]);
    }
  CHECK(reader >= 896 - 32);
  const auto substitute = card.rows("substitute", "squared change in its place");
  REQUIRE(substitute.size() == 1);
  REQUIRE(card.click_until(0.16F, [&] { return card.selection().row.has_value(); }));
  CHECK(card.selection().row == reader);
  CHECK(card.selection().token == 379);
  REQUIRE(card.click_until(0.4F, [&] { return card.selection().token != 379; }));
  CHECK(card.selection().token == static_cast<Index>(std::stoi(substitute[0][6])));
  CHECK(card.failed_job().empty());
}

TEST_CASE("all figures are folded under the card, and stay open where a session says so", "[token_card]") {
  Card card;
  card.select({}, 379);
  CHECK(Card::shows("All figures"));
  CHECK_FALSE(Card::shows("attention paid to it, summed"));
  card.app.panel(PanelKind::inspector).load({{"all_figures", true}});
  card.host.resize(420, 1800, 1);
  card.settle();
  CHECK(Card::shows("attention paid to it"));
  CHECK(card.app.panel(PanelKind::inspector).save()["all_figures"] == true);
}

TEST_CASE("without a token the inspector says what to click", "[token_card]") {
  Card card;
  CHECK(Card::shows("Click a token"));
  CHECK_FALSE(Card::shows("Removing it alone costs"));
}

TEST_CASE("the card stands a dump of five tokens without words, and a query before the token",
          "[token_card]") {
  const test::TempDir folder;
  test::SmallDump{}.write(folder / "small");
  Card card(folder / "small", 0, 0);
  for (Index token = 0; token < 5; ++token)
    for (const std::optional<Index> row : {std::optional<Index>(), std::optional<Index>(0)}) {
      card.select(row, token);
      CHECK(Card::shows("Removing it alone costs"));
    }
  CHECK(card.failed_job().empty());
}

TEST_CASE("of results without their dump the card has costs and orders, and says what is missing",
          "[token_card]") {
  const test::TempDir folder;
  std::filesystem::copy(kSample, folder / "dump", std::filesystem::copy_options::recursive);
  test::succeed({"tokens", folder / "dump", "--out", folder / "tokens"});
  std::filesystem::remove_all(folder / "dump");
  Card card(folder / "tokens");
  card.select({}, 379);
  CHECK(Card::shows("rank "));
  CHECK(Card::shows("exact order"));
  CHECK(Card::shows("needs the dump"));
  CHECK_FALSE(Card::shows("Read most by"));
  CHECK(card.failed_job().empty());
}

TEST_CASE("the budget in Score against exact follows the queue's, as Recall and loss has it", "[panels]") {
  test::OnePanelDashboard scatter(PanelKind::scatter, kSample, 800, 560, 3, 1);
  std::vector<double> score, exact;
  for (const auto& row : test::cells_of(scatter.csv())) {
    if (row[0] == "layer") continue;
    score.push_back(std::stod(row[4]));
    exact.push_back(std::stod(row[5]));
  }
  const ScoreCurve curve{Ranking(score), Ranking(exact)};
  for (const Index budget : {1, 45, 179, 896}) {
    scatter.app.state().budget = {.sigma_budget = false, .budget = budget};
    scatter.settle();
    const auto lost = std::llround(static_cast<double>(budget) * (1 - curve.at(budget).recall));
    INFO(budget);
    CHECK(Card::shows(fmt::format("{} lost, {} wasted", lost, lost)));
    CHECK(Card::shows(fmt::format("Recall at {}", budget)));
  }
}
