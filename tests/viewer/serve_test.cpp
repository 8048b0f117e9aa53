#include "tests/support/catch.hpp"
#include "viewer/serve/changed_areas.hpp"
#include "viewer/serve/web_event.hpp"

#include <cstddef>
#include <random>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;

namespace {

WebEvent said(const std::string& message) {
  const auto event = web_event(message);
  INFO(message);
  REQUIRE(event);
  return *event;
}

}  // namespace

TEST_CASE("a browser's keys are the dashboard's", "[viewer][serve]") {
  const auto text = [](const std::string& name, bool control = false, bool shift = false, bool alt = false) {
    return shortcut_of_web(name, control, shift, alt).text();
  };
  CHECK(text("ArrowLeft") == "Left");
  CHECK(text(" ") == "Space");
  CHECK(text("F1") == "F1");
  CHECK(text("p", true, true) == "Ctrl+Shift+P");
  CHECK(text("P", true, true) == "Ctrl+Shift+P");
  CHECK(text("?", false, true) == "?");  // as typed, without the shift that the keyboard took for it
  CHECK(text("7") == "7");
  CHECK(text("=", true) == "Ctrl++");
  for (const std::string nothing : {"Shift", "Dead", "F1234", "", "\xc3\xa9", "Unidentified"})
    CHECK(shortcut_of_web(nothing, false, false, false).empty());
  // What closes a browser's tab has another key there.
  CHECK(text("w", false, false, true) == "Ctrl+W");
  CHECK(text("Tab", false, true, true) == "Ctrl+Shift+Tab");
  CHECK(text("q", false, false, true) == "Ctrl+Q");
  CHECK(text("x", false, false, true) == "Alt+X");
}

TEST_CASE("what a page says is read, and nothing else", "[viewer][serve]") {
  const WebEvent size = said(R"({"t":"size","w":1920,"h":1080,"scale":1.5})");
  CHECK(size.kind == WebEvent::Kind::size);
  CHECK((size.x == 1920 && size.y == 1080 && size.scale == 1.5));
  const WebEvent button = said(R"({"t":"button","b":1,"down":true,"x":10.5,"y":-3,"c":true})");
  CHECK((button.number == 1 && button.down && button.control && !button.shift && button.x == 10.5 &&
         button.y == -3));
  CHECK(said(R"({"t":"key","k":"a","down":true})").characters == std::vector<unsigned>{'a'});
  CHECK(said(R"({"t":"key","k":"\u20ac","down":true})").characters == std::vector<unsigned>{0x20AC});
  CHECK(said(R"({"t":"key","k":"\ud83d\ude00","down":true})").characters == std::vector<unsigned>{0x1F600});
  CHECK(said(R"({"t":"key","k":"a","down":false})").characters.empty());
  CHECK(said(R"({"t":"key","k":"a","down":true,"c":true})").characters.empty());
  CHECK(said(R"({"t":"key","k":"Enter","down":true})").characters.empty());
  CHECK(said(R"({"t":"paste","text":"snapkv"})").text == "snapkv");
  CHECK(said(R"({"t":"seen","n":7})").number == 7);
  for (const std::string bad : {"",
                                "{",
                                "[]",
                                "7",
                                "null",
                                R"({"t":7})",
                                R"({"t":"shout"})",
                                R"({"w":10})",
                                R"({"t":"size","w":10,"h":10,"scale":1})",
                                R"({"t":"size","w":1e9,"h":800,"scale":1})",
                                R"({"t":"size","w":"800","h":800,"scale":1})",
                                R"({"t":"size","w":800,"h":800,"scale":0})",
                                R"({"t":"move","x":1e999,"y":0})",
                                R"({"t":"move","x":null,"y":0})",
                                R"({"t":"button","b":9,"x":0,"y":0})",
                                R"({"t":"wheel","x":0})",
                                R"({"t":"key"})",
                                R"({"t":"key","k":7})",
                                R"({"t":"paste"})",
                                R"({"t":"seen","n":-1})",
                                R"({"t":"seen","n":1e12})",
                                "{\"t\":\"paste\",\"text\":\"\xff\"}"})
    CHECK_FALSE(web_event(bad));
  CHECK_FALSE(web_event(R"({"t":"key","k":")" + std::string(40, 'x') + "\"}"));
  CHECK_FALSE(web_event(R"({"t":"paste","text":")" + std::string(kMostMessage, 'x') + "\"}"));
  CHECK_FALSE(web_event(std::string(100000, '[')));
}

TEST_CASE("areas cover what differs between two pictures, once, and little else", "[viewer][serve]") {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const int width = 1 + static_cast<int>(random() % 200), height = 1 + static_cast<int>(random() % 200);
    const auto count = static_cast<std::size_t>(width) * static_cast<std::size_t>(height);
    std::vector<Rgb> before(count), now;
    for (Rgb& pixel : before) pixel = {static_cast<std::uint8_t>(random()), 0, 0};
    now = before;
    for (std::size_t n = random() % 6; n > 0; --n) now[random() % count].g = 1;
    const std::vector<PixelArea> areas = changed_areas(before, now, width, height);
    std::vector<int> covered(count);
    for (const PixelArea& area : areas) {
      REQUIRE((area.x >= 0 && area.y >= 0 && area.width > 0 && area.height > 0));
      REQUIRE((area.x + area.width <= width && area.y + area.height <= height));
      for (int y = area.y; y < area.y + area.height; ++y)
        for (int x = area.x; x < area.x + area.width; ++x)
          ++covered[static_cast<std::size_t>(y) * static_cast<std::size_t>(width) +
                    static_cast<std::size_t>(x)];
      // Put together they are the new picture.
      const std::vector<Rgb> cut = cut_out(now, width, area);
      for (int y = 0; y < area.height; ++y)
        for (int x = 0; x < area.width; ++x)
          before[static_cast<std::size_t>(area.y + y) * static_cast<std::size_t>(width) +
                 static_cast<std::size_t>(area.x + x)] =
              cut[static_cast<std::size_t>(y) * static_cast<std::size_t>(area.width) +
                  static_cast<std::size_t>(x)];
    }
    CHECK(before == now);
    CHECK(std::ranges::max(covered) <= 1);
    CHECK(changed_areas(now, now, width, height).empty());
    CHECK(changed_areas({}, now, width, height) == std::vector<PixelArea>{{0, 0, width, height}});
  }
  // One pixel is one small area; a broad line is one, too.
  std::vector<Rgb> before(640 * 480), now = before;
  now[100 * 640 + 300].r = 9;
  CHECK(changed_areas(before, now, 640, 480) == std::vector<PixelArea>{{288, 96, 32, 32}});
  for (int x = 0; x < 640; ++x)
    for (int y = 100; y < 200; ++y) now[static_cast<std::size_t>(y * 640 + x)].r = 9;
  CHECK(changed_areas(before, now, 640, 480) == std::vector<PixelArea>{{0, 96, 640, 128}});
}
