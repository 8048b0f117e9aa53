// Tokens kept and evicted by hand: their error at once, and the same from the command line.

#include "tests/analysis/kvreplay_program.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer_gl/dashboard.hpp"
#include "tests/viewer_gl/drawn_frame.hpp"
#include "viewer/questions/ask.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::kSample;

namespace {

struct ByHand : test::OnePanelDashboard {
  ByHand() : OnePanelDashboard(PanelKind::what_if, kSample, 900, 700, 3, 1) {}
  AppState& state() { return app.state(); }
  WhatIf answer(Index layer = 3, Index kv_head = 1) {
    settle();
    PanelContext context{state(), app.queue()};
    for (;;) {
      const auto found = ask_what_if(context, state().setting(), layer, kv_head, Urgency::now, {});
      REQUIRE(found.error == "");
      if (found && !found.stale) return *found;
      settle();
    }
  }
  void choose(Index first, Index end) {
    std::vector<Index> tokens(end - first);
    std::iota(tokens.begin(), tokens.end(), first);
    state().select_tokens(std::move(tokens));
  }
};

}  // namespace

TEST_CASE("choosing a token moves nothing in What if", "[by-hand]") {
  ByHand panel;
  const auto places = [&] {
    panel.settle();
    panel.host.ui().make_current();
    std::vector<std::string> texts;
    for (const test::DrawnText& drawn : test::drawn_texts())
      if (drawn.text.rfind("Token", 0) != 0)
        texts.push_back(fmt::format("{} {} {}", drawn.text, drawn.area.x, drawn.area.y));
    return texts;
  };
  const auto none = places();
  CHECK(none.size() > 20);
  for (const Index token : {7, 300}) {
    panel.state().select_cell(std::nullopt, token);
    CHECK(places() == none);
  }
}

TEST_CASE("keys keep, pin and evict the chosen tokens, with the exact error", "[by-hand]") {
  ByHand panel;
  const WhatIf before = panel.answer();
  panel.tap({"K"});
  CHECK(panel.state().setting_a.painted.empty());  // nothing is chosen
  CHECK_FALSE(panel.state().message().empty());

  panel.choose(100, 110);
  panel.tap({"K"});
  CHECK(panel.state().setting_a.painted == "keep 100-109");
  const WhatIf kept = panel.answer();
  CHECK(std::all_of(kept.kept.begin() + 100, kept.kept.begin() + 110, [](auto k) { return k == 1; }));
  CHECK(kept.tokens > before.tokens);
  CHECK(kept.bytes > before.bytes);
  CHECK(kept.future.change_sq < before.future.change_sq);

  panel.tap({.key = "K", .shift = true});
  CHECK(panel.state().setting_a.painted == "pin 100-109");
  const WhatIf pinned = panel.answer();
  CHECK(pinned.tokens == before.tokens);
  CHECK(std::all_of(pinned.kept.begin() + 100, pinned.kept.begin() + 110, [](auto k) { return k == 1; }));

  panel.tap({"E"});
  const WhatIf evicted = panel.answer();
  CHECK(std::none_of(evicted.kept.begin() + 100, evicted.kept.begin() + 110, [](auto k) { return k == 1; }));
  panel.tap({"U"});
  CHECK(panel.state().setting_a.painted.empty());
  CHECK(panel.answer().kept == before.kept);

  // In one head only, in the other setting, and taken back by undo.
  panel.state().show_b = panel.state().paint_here = true;
  panel.choose(5, 6);
  panel.tap({"E"});
  CHECK(panel.state().setting_a.painted.empty());
  CHECK(panel.state().setting_b.painted == "evict 5 in 3.1");
  panel.perform(ActionId::undo);
  CHECK(panel.state().setting_b.painted.empty());
}

TEST_CASE("a kept set that was made by hand is measured by evict with the same errors", "[by-hand]") {
  const test::TempDir dir;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(dir.path());
  ByHand panel;
  panel.choose(100, 140);
  panel.tap({"K"});
  panel.choose(0, 2);
  panel.state().paint_here = true;
  panel.tap({"E"});
  CHECK(panel.state().setting_a.painted == "keep 100-139; evict 0-1 in 3.1");
  panel.perform(ActionId::save_kept_set);
  panel.settle();
  std::filesystem::current_path(before);
  const std::string line = ImGui::GetClipboardText();
  INFO(line);
  REQUIRE_FALSE(panel.state().message_is_error());
  const std::size_t at = line.find("by_hand=");
  REQUIRE(at != std::string::npos);
  const std::string file = line.substr(at);
  const std::filesystem::path out = dir / "out";
  const test::ProcessResult run = test::run_kvreplay(
      {"evict", kSample.string(), "--out", out.string(), "--policy", "none", "--kept", file});
  INFO(run.err);
  REQUIRE(run.code == 0);
  const std::string text = test::contents(out).at("evictions.csv");
  for (const auto& [layer, head] : {std::pair<Index, Index>{3, 1}, {0, 0}, {5, 0}}) {
    const std::string row = fmt::format("\n{},{},by_hand,given,", layer, head);
    const WhatIf shown = panel.answer(layer, head);
    double measured = -1;
    for (std::size_t found = text.find(row); found != std::string::npos; found = text.find(row, found + 1)) {
      const std::string line_of = text.substr(found + 1, text.find('\n', found + 1) - found - 1);
      const std::string figure = ",future,output_error,";
      if (const std::size_t value = line_of.find(figure); value != std::string::npos)
        measured = std::stod(line_of.substr(value + figure.size()));
    }
    INFO(row);
    CHECK(measured == Approx(shown.future.error).epsilon(1e-6));
  }
}
