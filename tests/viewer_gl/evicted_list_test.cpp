// The list of tokens that a setting evicts though it should not, and what choosing them does.

#include "tests/viewer_gl/dashboard.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::kSample;

namespace {

struct EvictedBoard : test::OnePanelDashboard {
  EvictedBoard() : OnePanelDashboard(PanelKind::scatter, kSample, 900, 600, 3, 1) {
    app.state().comparison.reference = TokenMetric::oracle_importance;
    set({{"show_evicted", true}});
  }

  /// The tokens of the exported list, in its order.
  std::vector<Index> listed() {
    std::istringstream lines(csv());
    std::string line;
    std::getline(lines, line);
    std::vector<Index> tokens;
    while (std::getline(lines, line)) {
      const std::size_t from = line.find(',', line.find(',') + 1) + 1;
      tokens.push_back(std::stoi(line.substr(from)));
    }
    return tokens;
  }
  void set(const nlohmann::json& settings) {
    app.panel(kind).load(settings);
    settle();
  }
  /// The height share at which a token's row is hovered, some pixels below its upper edge.
  float row_of(Index token) {
    for (float y = 0.15F; y < 0.98F; y += 0.008F) {
      const auto [px, py] = at(kind, 0.75F, y);
      host.move_mouse(px, py);
      host.settle(2);
      if (app.state().hover.token == token) return y + 0.012F;
    }
    FAIL("token " << token << " is not in the list's view");
    return 0;
  }
};

}  // namespace

TEST_CASE("the list is what the setting evicts of the best, and A and B have their own", "[wrongly]") {
  EvictedBoard board;
  const std::vector<Index> of_a = board.listed();
  REQUIRE(of_a.size() > 10);
  board.app.state().show_b = true;
  board.settle();
  const std::vector<Index> of_b = board.listed();
  REQUIRE(!of_b.empty());
  CHECK(of_a != of_b);
  // Whoever ranks by the truth itself is never wrong.
  board.app.state().setting_b.base = "oracle";
  board.app.state().setting_b.score.clear();
  board.settle();
  CHECK(board.listed().empty());
  board.app.state().show_b = false;
  board.app.state().comparison.reference = TokenMetric::exact_remove;
  board.settle();
  CHECK(board.listed() != of_a);
  CHECK(board.failed_job().empty());
}

TEST_CASE("rows choose tokens for all panels", "[wrongly]") {
  EvictedBoard board;
  const std::vector<Index> listed = board.listed();
  const float first = board.row_of(listed[0]), third = board.row_of(listed[2]);
  board.click(board.kind, 0.75F, first);
  CHECK(board.selection().tokens == std::vector{listed[0]});
  CHECK(board.selection().token == listed[0]);
  board.host.hold({.control = true});
  board.click(board.kind, 0.75F, third);
  board.host.hold({});
  CHECK(board.selection().tokens ==
        std::vector{std::min(listed[0], listed[2]), std::max(listed[0], listed[2])});
  board.click(board.kind, 0.75F, first);
  board.host.hold({.shift = true});
  board.click(board.kind, 0.75F, third);
  board.host.hold({});
  std::vector<Index> three(listed.begin(), listed.begin() + 3);
  std::sort(three.begin(), three.end());
  CHECK(board.selection().tokens == three);
}

TEST_CASE("the list says which policies keep a token, and goes with its switch", "[wrongly]") {
  EvictedBoard board;
  CHECK(board.csv().starts_with("layer,kv_head,token,text,by_truth,by_score,truth,kept_by\n"));
  CHECK(board.csv().find("keydiff") != std::string::npos);
  board.set({{"show_evicted", false}});
  CHECK(board.csv().starts_with("layer,kv_head,query_head,token,"));
}
