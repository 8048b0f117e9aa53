// The findings above the panels.

#include "tests/analysis/kvreplay_program.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer_gl/dashboard.hpp"
#include "tests/viewer_gl/drawn_frame.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::Dashboard;
using test::kSample;

namespace {

std::size_t place_of(const std::vector<Finding>& list, FindingKind kind) {
  for (std::size_t i = 0; i < list.size(); ++i)
    if (list[i].kind == kind) return i;
  return list.size();
}

void click_line(Dashboard& dashboard, std::size_t line, std::size_t lines) {
  const Area& strip = dashboard.app.finding_area();
  REQUIRE(strip.height > 0);
  const float share = (static_cast<float>(line) + 0.5F) / static_cast<float>(lines);
  dashboard.host.click(strip.x + 400, strip.y + 4 + (strip.height - 14) * share);
  dashboard.host.settle();
  dashboard.settle();
}

/// What was drawn last within the strip, without spaces.
std::string text_in_strip(Dashboard& dashboard) {
  const Area& strip = dashboard.app.finding_area();
  std::string text;
  for (const test::DrawnText& one : test::drawn_texts())
    if (one.area.y >= strip.y && one.area.y < strip.y + strip.height) text += one.text;
  return text;
}

std::string without_spaces(std::string text) {
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  return text;
}

/// How many of the findings stand in the strip as a whole.
std::size_t whole_sentences(Dashboard& dashboard) {
  const std::string shown = text_in_strip(dashboard);
  const auto& list = dashboard.app.findings().source().list();
  return static_cast<std::size_t>(std::count_if(list.begin(), list.end(), [&](const Finding& one) {
    return shown.find(without_spaces(one.text)) != std::string::npos;
  }));
}

}  // namespace

TEST_CASE("findings take two lines where they are long, and one in a lower window", "[findings]") {
  Dashboard high(kSample, 1000, 800);
  REQUIRE(high.app.findings().source().list().size() == 4);
  CHECK(whole_sentences(high) == 4);
  const float of_two = high.app.finding_area().height;
  CHECK(of_two < 0.22F * 800);
  // The second line leads as the first does.
  const auto& list = high.app.findings().source().list();
  const std::size_t head = place_of(list, FindingKind::head);
  REQUIRE(head < list.size());
  high.app.state().select_head(5, 0);
  high.settle();
  const std::string end = without_spaces(list[head].text);
  for (const test::DrawnText& one : test::drawn_texts()) {
    if (one.area.y > high.app.finding_area().y + of_two || one.text.size() < 12 || !end.ends_with(one.text))
      continue;
    CHECK(one.text != end);
    high.host.click(one.area.x + 20, one.area.y + 6);
    break;
  }
  high.host.settle();
  high.settle();
  CHECK(high.selection().layer == list[head].place.layer);

  Dashboard low(kSample, 1000, 680);
  CHECK(low.app.finding_area().height < of_two * 0.7F);
  CHECK(low.app.finding_area().height > 60);  // not folded
  CHECK(whole_sentences(low) < 4);
}

TEST_CASE("panels stay where they are while findings come in", "[findings]") {
  Dashboard dashboard("", 1280, 800);
  dashboard.app.open(kSample);
  std::set<float> heights;
  for (int quiet = 0; quiet < 3; quiet = dashboard.app.settled() ? quiet + 1 : 0) {
    dashboard.host.frame();
    if (dashboard.app.finding_area().height > 0) heights.insert(dashboard.app.finding_area().height);
    if (!dashboard.app.settled()) dashboard.app.queue().wait_idle(std::chrono::milliseconds(5));
  }
  CHECK(dashboard.app.findings().source().list().size() == 4);
  CHECK(heights.size() == 1);
}

TEST_CASE("a dump's findings stand above the panels and lead to what they speak of", "[findings]") {
  Dashboard dashboard(kSample);
  const std::vector<Finding>& list = dashboard.app.findings().source().list();
  REQUIRE(list.size() == 4);
  CHECK(dashboard.failed_job().empty());
  const std::size_t head = place_of(list, FindingKind::head), policy = place_of(list, FindingKind::policy);
  REQUIRE(head < list.size());
  REQUIRE(policy < list.size());
  const FindingPlace place = list[head].place;
  dashboard.app.state().select_head(5, 0);
  dashboard.app.state().comparison.score = TokenMetric::key;
  dashboard.settle();

  click_line(dashboard, head, list.size());
  CHECK(dashboard.selection().layer == place.layer);
  CHECK(dashboard.selection().kv_head == place.kv_head);
  CHECK(dashboard.selection().token == place.token);
  CHECK(dashboard.app.state().comparison.score == TokenMetric::attn);
  CHECK(dashboard.app.area(PanelKind::scatter).width > 0);

  dashboard.app.state().setting_a.sigma = 0.5;
  click_line(dashboard, policy, list.size());
  CHECK(dashboard.app.state().setting_a.policy() == "snapkv+joint");
  CHECK(dashboard.app.state().setting_a.sigma == 0.8);

  // One panel that fills the window has it for itself.
  dashboard.app.layout().maximise(PanelKind::tokens);
  dashboard.settle();
  CHECK(dashboard.app.finding_area().height == 0);
}

TEST_CASE("in a low window, and on request, findings are one line that is leafed through", "[findings]") {
  for (const bool by_hand : {false, true}) {
    INFO("by hand " << by_hand);
    Dashboard dashboard(kSample, by_hand ? 1280 : 900, by_hand ? 800 : 600);
    const float before = dashboard.app.finding_area().height;
    const auto& list = dashboard.app.findings().source().list();
    REQUIRE(list.size() == 4);
    const float x = dashboard.app.finding_area().x, y = dashboard.app.finding_area().y;
    if (by_hand) {
      dashboard.host.click(x + 40, y + 12);
      dashboard.host.settle();
      dashboard.settle();
      CHECK(dashboard.app.finding_area().height < before / 2);
      CHECK(dashboard.app.save().panels["findings"]["folded"] == true);
    } else {
      CHECK(before < 40);
    }
    // The second one, whichever it is: leads where the first did not.
    REQUIRE(list[1].kind == FindingKind::head);
    dashboard.app.state().select_head(5, 0);
    dashboard.settle();
    const auto head = [&] { return dashboard.selection().layer; };
    click_line(dashboard, 0, 1);
    CHECK(head() == 5);  // the first is of all heads
    bool found = false;
    for (float at = x + 150; at < x + 240 && !found; at += 5) {
      dashboard.host.click(at, y + 14);
      dashboard.host.settle();
      dashboard.settle();
      click_line(dashboard, 0, 1);
      found = head() == list[1].place.layer;
    }
    CHECK(found);
  }
}

TEST_CASE("a result folder's findings are those that it says", "[findings]") {
  const test::TempDir dir;
  const std::string out = dir / "out";
  const test::ProcessResult run =
      test::run_kvreplay({"evict", kSample.string(), "--out", out, "--policy", "h2o,tova,oracle_exact",
                          "--sigma", "0.9", "--layers", "1,3", "--quiet"});
  REQUIRE(run.code == 0);
  Dashboard dashboard(out);
  const auto& list = dashboard.app.findings().source().list();
  CHECK(text_of(list) == text_of(findings_of(ResultReader(out))));
  REQUIRE_FALSE(list.empty());
  click_line(dashboard, place_of(list, FindingKind::policy), list.size());
  CHECK(dashboard.app.state().setting_a.sigma == 0.9);
  CHECK(list[place_of(list, FindingKind::policy)].text.find(dashboard.app.state().setting_a.policy()) !=
        std::string::npos);
}
