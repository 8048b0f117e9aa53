// Scores of the user's in What if, and panels that show one query head's own figures.

#include "analysis/results/agreement.hpp"
#include "data/npy_write.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer_gl/dashboard.hpp"
#include "viewer/questions/ask.hpp"

#include <array>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::kSample;

namespace {

void write_score(const std::filesystem::path& file, const std::array<std::size_t, 3>& shape) {
  std::vector<double> values(shape[0] * shape[1] * shape[2]);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 896);
  write_npy(file, shape, values);
}

}  // namespace

TEST_CASE("a dropped score is offered in What if, ranks there, and comes back with the session", "[scores]") {
  const test::TempDir dir;
  write_score(dir / "late-first.npy", {6, 2, 896});
  Session saved;
  {
    test::OnePanelDashboard panel(PanelKind::what_if, kSample, 800, 560, 3, 1);
    panel.host.drop({dir / "late-first.npy"});
    panel.settle();
    AppState& state = panel.app.state();
    REQUIRE(state.scores.size() == 1);
    CHECK(state.scores[0].name == "late_first");
    CHECK_FALSE(state.message_is_error());
    CHECK(state.message().find("late_first") != std::string::npos);
    state.setting_a = {};
    state.setting_a.base = "h2o";
    state.setting_a.score = "late_first";
    state.setting_a.linked = false;
    state.setting_a.sigma_budget = false;
    state.setting_a.budget = 10;
    state.setting_a.recent = 0;
    panel.settle();
    CHECK(panel.failed_job() == "");
    PanelContext context{state, panel.app.queue()};
    const auto answer = ask_what_if(context, state.setting_a, 3, 1, Urgency::now, {});
    REQUIRE(answer);
    KeptSet last_ten(896, 0);
    std::fill(last_ten.end() - 10, last_ten.end(), std::uint8_t{1});
    CHECK(answer->kept == last_ten);
    WhatIfSettings fitted = state.setting_a;
    fitted.compensation = Compensation::fit;
    state.setting_a = fitted;
    panel.settle();
    const auto made_up = ask_what_if(context, fitted, 3, 1, Urgency::now, {});
    REQUIRE(made_up);
    CHECK(made_up->kept == last_ten);
    CHECK(made_up->future.error < answer->future.error);
    CHECK(panel.csv().find("h2o+late_first") != std::string::npos);

    panel.host.drop({dir / "late-first.npy"});  // again: replaced, not doubled
    panel.settle();
    CHECK(state.scores.size() == 1);
    saved = panel.app.save();
  }
  test::Dashboard again("");
  again.app.restore(session_of_text(text_of(saved)).session, true);
  again.settle();
  REQUIRE(again.app.state().scores.size() == 1);
  CHECK(again.app.state().scores[0].file == dir / "late-first.npy");
  CHECK(again.app.state().setting_a.score == "late_first");
}

TEST_CASE("a score that fits no open dump is refused with one line", "[scores]") {
  const test::TempDir dir;
  write_score(dir / "other.npy", {6, 2, 500});
  test::Dashboard dashboard(kSample);
  const auto refused = [&](const std::filesystem::path& file, const std::vector<std::string>& words) {
    dashboard.host.drop({file});
    dashboard.settle();
    const std::string line = dashboard.app.state().message();
    INFO(line);
    CHECK(dashboard.app.state().message_is_error());
    CHECK(line.find('\n') == std::string::npos);
    for (const std::string& word : words) CHECK(line.find(word) != std::string::npos);
    CHECK(dashboard.app.state().scores.empty());
  };
  refused(dir / "other.npy", {"other.npy", "896", "500"});
  refused(dir / "gone.npy", {"gone.npy"});
  write_score(dir / "attn.npy", {6, 2, 896});
  refused(dir / "attn.npy", {"attn.npy", "'attn', which is taken"});
  test::Dashboard empty("");
  empty.host.drop({dir / "other.npy"});
  empty.settle();
  CHECK(empty.app.state().message_is_error());
  CHECK(empty.app.state().message().find("open the dump first") != std::string::npos);
}

TEST_CASE("scores of a session that name none are remarked upon", "[scores]") {
  for (const char* item : {"=", "x=", "=y.npy", "none", ""}) {
    CAPTURE(item);
    test::Dashboard dashboard("");
    Session session;
    session.scores = {item};
    dashboard.app.restore(session, true);
    CHECK(dashboard.app.state().message_is_error());
    CHECK(dashboard.app.state().scores.empty());
  }
}

TEST_CASE("a score that the settings name but nobody gave is said to be unknown", "[scores]") {
  test::OnePanelDashboard panel(PanelKind::what_if, kSample, 800, 560, 3, 1);
  AppState& state = panel.app.state();
  state.setting_a.score = "mine";
  panel.settle();
  PanelContext context{state, panel.app.queue()};
  const auto answer = ask_what_if(context, state.setting_a, 3, 1, Urgency::now, {});
  CHECK(answer.error.find("'mine'") != std::string::npos);
}

TEST_CASE("scatter and curves show the selected query head's own figures, and the group's sums without one",
          "[scores]") {
  for (const PanelKind kind : {PanelKind::scatter, PanelKind::curves}) {
    test::OnePanelDashboard panel(kind, kSample, 800, 560, 3, 1);
    const std::string sums = panel.csv();
    CHECK(sums.find("\n3,1,,") != std::string::npos);
    std::vector<std::string> own;
    for (const Index query_head : {0, 1}) {
      Selection selection = panel.selection();
      selection.query_head = query_head;
      panel.app.state().select(selection);
      panel.settle();
      own.push_back(panel.csv());
      CHECK(own.back().find("\n3,1," + std::to_string(query_head) + ",") != std::string::npos);
    }
    CHECK(panel.failed_job() == "");
    if (kind != PanelKind::scatter) continue;
    // Of every token: the two query heads' attention adds up to the group's.
    const auto column = [](const std::string& csv) {
      std::vector<double> values;
      for (std::size_t at = csv.find('\n'); at + 1 < csv.size(); at = csv.find('\n', at + 1)) {
        std::size_t field = at + 1;
        for (int i = 0; i < 4; ++i) field = csv.find(',', field) + 1;
        values.push_back(std::stod(csv.substr(field)));
      }
      return values;
    };
    const std::vector<double> all = column(sums), first = column(own[0]), second = column(own[1]);
    REQUIRE(all.size() == 896);
    for (std::size_t p = 0; p < all.size(); ++p) {
      INFO(p);
      CHECK(first[p] + second[p] == Approx(all[p]).epsilon(1e-4));
    }
  }
}
