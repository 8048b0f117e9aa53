#include "data/error.hpp"
#include "tests/support/catch.hpp"
#include "tests/viewer_gl/clients.hpp"
#include "tests/viewer_gl/scripted_host.hpp"

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::viewer {
namespace {

using Keys = std::vector<std::pair<std::string, bool>>;

TEST_CASE("headless: a scripted click presses a button, once", "[viewer][gl]") {
  ButtonClient client;
  ScriptedHost host(client, 400, 300);
  host.settle();
  CHECK(client.pressed == 0);
  host.click(80, 40);
  host.settle();
  CHECK(client.pressed == 1);
  host.click(80, 40);
  host.click(81, 41);
  host.settle();
  CHECK(client.pressed == 3);
  host.click(300, 200);  // beside it
  host.click(80, 40, 1);
  host.settle();
  CHECK(client.pressed == 3);
  host.drag(80, 40, 300, 200);  // let go elsewhere
  host.settle();
  CHECK(client.pressed == 3);
}

TEST_CASE("headless: what is under the mouse is lit, and only that", "[viewer][gl]") {
  ButtonClient client;
  ScriptedHost host(client, 401, 299);
  host.settle();
  const auto before = host.pixels();
  REQUIRE(before.size() == 401U * 299U);
  host.move_mouse(80, 40);
  host.settle();
  const auto after = host.pixels();
  REQUIRE(after.size() == before.size());
  int inside = 0, outside = 0;
  for (int y = 0; y < 299; ++y)
    for (int x = 0; x < 401; ++x) {
      const auto i = static_cast<std::size_t>(y) * 401 + static_cast<std::size_t>(x);
      if (before[i] == after[i]) continue;
      (x >= 20 && x < 140 && y >= 20 && y < 60 ? inside : outside) += 1;
    }
  CHECK(inside > 120 * 40 / 2);
  CHECK(outside == 0);
}

TEST_CASE("headless: two runs of one script give equal pixels", "[viewer][gl]") {
  const auto run = [] {
    ButtonClient client;
    ScriptedHost host(client, 320, 200, 1.5F);
    host.click(100, 90);
    host.type("Δe = 3");
    host.settle();
    return host.pixels();
  };
  const auto first = run(), second = run();
  CHECK(first == second);
  std::set<int> shades;
  for (const Rgb& pixel : first) shades.insert(pixel.r * 65536 + pixel.g * 256 + pixel.b);
  CHECK(shades.size() > 20);  // smoothed letters, not an empty picture
}

TEST_CASE("headless: typing reaches text fields and the client alike", "[viewer][gl]") {
  ButtonClient client;
  ScriptedHost host(client, 400, 300);
  host.click(60, 90);
  host.settle();
  host.type("aB c?é→");
  host.settle();
  CHECK(std::string(client.text) == "aB c?é→");
  CHECK(client.keys == Keys{{"A", true},
                            {"A", false},
                            {"Shift+B", true},
                            {"Shift+B", false},
                            {"Space", true},
                            {"Space", false},
                            {"C", true},
                            {"C", false},
                            {"?", true},
                            {"?", false}});
  host.tap_key({"Backspace"});
  host.tap_key({"Backspace"});
  host.settle();
  CHECK(std::string(client.text) == "aB c?");
  host.tap_key({.key = "A", .control = true});
  host.tap_key({.key = "X", .control = true});
  host.settle();
  CHECK(std::string(client.text).empty());
  host.tap_key({.key = "V", .control = true});
  host.settle();
  CHECK(std::string(client.text) == "aB c?");
}

TEST_CASE("headless: a key held, and modifiers with the mouse", "[viewer][gl]") {
  ButtonClient client;
  ScriptedHost host(client, 400, 300);
  host.press_key({"F"});
  host.settle();
  CHECK(client.keys == Keys{{"F", true}});
  host.release_key({"F"});
  host.tap_key({.key = "P", .control = true, .shift = true});
  host.settle();
  CHECK(client.keys == Keys{{"F", true}, {"F", false}, {"Ctrl+Shift+P", true}, {"Ctrl+Shift+P", false}});
  host.hold({.shift = true});
  host.settle();
  CHECK(ImGui::GetIO().KeyShift);
  host.hold({});
  host.settle();
  CHECK_FALSE(ImGui::GetIO().KeyShift);
}

TEST_CASE("headless: scale and text size reach the client and the fonts", "[viewer][gl]") {
  ButtonClient client;
  ScriptedHost host(client, 400, 300, 1);
  host.frame();
  CHECK(client.scales == std::vector<float>{1});
  const float small = ui_font()->FontSize;
  host.resize(800, 600, 2);
  host.frame();
  CHECK(client.scales == std::vector<float>{1, 2});
  CHECK(host.pixels().size() == 800U * 600U);
  CHECK(ui_font()->FontSize == Approx(2 * small).margin(1));
  client.points = 26;
  host.frame();
  CHECK(ui_font()->FontSize == Approx(4 * small).margin(2));
  client.points = std::numeric_limits<float>::quiet_NaN();
  host.frame();
  CHECK(ui_font()->FontSize > 5);
}

TEST_CASE("headless: sizes that cannot be drawn are refused", "[viewer][gl]") {
  ButtonClient client;
  CHECK_THROWS_AS(ScriptedHost(client, 0, 100), InputError);
  CHECK_THROWS_AS(ScriptedHost(client, 100, -1), InputError);
  CHECK_THROWS_AS(ScriptedHost(client, 1 << 20, 100), InputError);
  CHECK_THROWS_AS(ScriptedHost(client, 100, 100, 0), InputError);
  CHECK_THROWS_AS(ScriptedHost(client, 100, 100, std::numeric_limits<float>::quiet_NaN()), InputError);
  ScriptedHost host(client, 1, 1);
  host.frame();
  CHECK(host.pixels().size() == 1);
}

TEST_CASE("headless: two hosts side by side do not disturb each other", "[viewer][gl]") {
  ButtonClient one, two;
  ScriptedHost first(one, 200, 120);
  first.settle();
  const auto alone = first.pixels();
  {
    ScriptedHost second(two, 300, 150, 2);
    second.click(80, 40);
    second.settle();
    first.settle();
    CHECK(two.pressed == 1);
  }
  first.settle();
  CHECK(one.pressed == 0);
  CHECK(first.pixels() == alone);
}

}  // namespace
}  // namespace kvreplay::viewer
