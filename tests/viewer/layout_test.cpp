#include "viewer/model/layout.hpp"

#include "tests/support/catch.hpp"

#include <cmath>
#include <random>
#include <set>

using namespace kvreplay::viewer;

namespace {

constexpr float kGap = 6;
constexpr Extent kLeast{120, 120};

std::set<PanelKind> panels_of(const std::vector<Layout::Slot>& slots) {
  std::set<PanelKind> panels;
  for (const Layout::Slot& slot : slots)
    for (const PanelKind panel : slot.panels) CHECK(panels.insert(panel).second);
  return panels;
}

bool apart(const Area& one, const Area& other) {
  return one.x + one.width <= other.x || other.x + other.width <= one.x || one.y + one.height <= other.y ||
         other.y + other.height <= one.y;
}

double area_of(const Area& area) { return static_cast<double>(area.width) * area.height; }

/// Slots and splitters tile the window: whole pixels, apart from each other, nothing left over.
void check_tiles(const Layout& layout, const Area& window) {
  std::vector<Area> parts;
  for (const Layout::Slot& slot : layout.slots(window, kGap, kLeast)) parts.push_back(slot.area);
  for (const Layout::Splitter& splitter : layout.splitters(window, kGap, kLeast))
    parts.push_back(splitter.area);
  double sum = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Area& part = parts[i];
    CHECK(part.x == std::floor(part.x));
    CHECK(part.height == std::floor(part.height));
    CHECK((part.x >= window.x && part.x + part.width <= window.x + window.width));
    CHECK((part.y >= window.y && part.y + part.height <= window.y + window.height));
    sum += area_of(part);
    for (std::size_t j = 0; j < i; ++j) CHECK(apart(part, parts[j]));
  }
  CHECK(sum == area_of(window));
}

}  // namespace

TEST_CASE("the standard layout has every panel once and fills the window", "[viewer][layout]") {
  const Layout layout = Layout::standard();
  for (const Area window : {Area{0, 0, 1280, 800}, Area{10, 31, 1919, 1043}, Area{0, 24, 701, 433}}) {
    const auto slots = layout.slots(window, kGap, kLeast);
    CHECK(panels_of(slots).size() == kPanels.size());
    CHECK(layout.splitters(window, kGap, kLeast).size() + 1 == slots.size());
    check_tiles(layout, window);
    for (const Layout::Slot& slot : slots) {
      CHECK(slot.area.width >= kLeast.width);
      CHECK(slot.area.height >= kLeast.height);
      CHECK(layout.in_front(slot.panels[slot.front]));
    }
  }
}

TEST_CASE("leaves that have no room beside each other share a place", "[viewer][layout]") {
  Layout layout = Layout::standard();
  const std::size_t leaves = layout.slots({0, 0, 4000, 3000}, kGap, kLeast).size();
  for (float width = 0; width < 900; width += 7)
    for (const float height : {0.0F, 119.0F, 130.0F, 247.0F, 600.0F}) {
      INFO(width << " x " << height);
      const Area window{3, 5, width, height};
      const auto slots = layout.slots(window, kGap, kLeast);
      CHECK(panels_of(slots).size() == kPanels.size());
      CHECK(layout.splitters(window, kGap, kLeast).size() + 1 == slots.size());
      check_tiles(layout, window);
      for (const Layout::Slot& slot : slots) {
        CHECK(slot.area.width >= std::min(kLeast.width, width));
        CHECK(slot.area.height >= std::min(kLeast.height, height));
        CHECK(slot.front < slot.panels.size());
      }
      // Nobody gives way who need not.
      if (width >= 3 * kLeast.width + 2 * kGap && height >= 2 * kLeast.height + kGap)
        CHECK(slots.size() == leaves);
      if (width < 2 * kLeast.width + kGap && height < 2 * kLeast.height + kGap) CHECK(slots.size() == 1);
    }
  // Of those that share, the one shown last is in front, also after a session.
  const Area small{0, 0, 130, 130};
  for (const PanelKind panel :
       {PanelKind::decode, PanelKind::heads, PanelKind::what_if, PanelKind::channels}) {
    layout.show(panel);
    for (const Layout& each : {layout, Layout::from_json(layout.to_json())}) {
      const auto slots = each.slots(small, kGap, kLeast);
      REQUIRE(slots.size() == 1);
      CHECK(slots[0].panels[slots[0].front] == panel);
    }
  }
}

TEST_CASE("borders follow the drag and stop at the least sizes", "[viewer][layout]") {
  const Area window{5, 20, 1280, 801};
  std::mt19937 random(9);
  Layout layout = Layout::standard();
  for (int trial = 0; trial < 400; ++trial) {
    const auto splitters = layout.splitters(window, kGap, kLeast);
    const Layout::Splitter& chosen = splitters[random() % splitters.size()];
    const float pixels = static_cast<float>(random() % 801) - 400;
    layout.drag(chosen.split, pixels, window, kGap, kLeast);
    check_tiles(layout, window);
    for (const Layout::Slot& slot : layout.slots(window, kGap, kLeast)) {
      CHECK(slot.area.width >= kLeast.width);
      CHECK(slot.area.height >= kLeast.height);
    }
    for (const Layout::Splitter& after : layout.splitters(window, kGap, kLeast)) {
      if (after.split != chosen.split) continue;
      const float moved = chosen.vertical ? after.area.x - chosen.area.x : after.area.y - chosen.area.y;
      CHECK(std::abs(moved) <= std::abs(pixels));
      CHECK(moved * pixels >= 0);
    }
  }
  // Where there is room the border keeps under the pointer, step by step.
  layout = Layout::standard();
  const Layout::Splitter before = layout.splitters(window, kGap, kLeast).front();
  for (int step = 0; step < 37; ++step) layout.drag(before.split, 1, window, kGap, kLeast);
  CHECK(layout.splitters(window, kGap, kLeast).front().area.x == before.area.x + 37);
  // Dragged far beyond the end it comes back at once.
  for (const float far : {5000.0F, -5000.0F}) {
    Layout pulled = layout;
    pulled.drag(before.split, far, window, kGap, kLeast);
    const float end = pulled.splitters(window, kGap, kLeast).front().area.x;
    pulled.drag(before.split, far > 0 ? -10.0F : 10.0F, window, kGap, kLeast);
    CHECK(pulled.splitters(window, kGap, kLeast).front().area.x == end + (far > 0 ? -10 : 10));
  }
  const Layout as_it_was = layout;
  layout.drag(before.split, std::nanf(""), window, kGap, kLeast);
  layout.drag(-1, 10, window, kGap, kLeast);
  layout.drag(999, 10, window, kGap, kLeast);
  layout.drag(before.split, 10, {0, 0, 30, 30}, kGap, kLeast);
  CHECK(layout == as_it_was);
}

TEST_CASE("panels come to the front, move and fill the window", "[viewer][layout]") {
  const Area window{0, 0, 1280, 800};
  Layout layout = layout_for(Preset::bad_heads);
  layout.show(PanelKind::channels);
  CHECK(layout.in_front(PanelKind::channels));
  CHECK_FALSE(layout.in_front(PanelKind::tokens));

  layout.maximise(PanelKind::recipes);
  auto slots = layout.slots(window, kGap, kLeast);
  REQUIRE(slots.size() == 1);
  CHECK(slots[0].area == window);
  CHECK(slots[0].panels == std::vector{PanelKind::recipes});
  CHECK(layout.splitters(window, kGap, kLeast).empty());
  CHECK(layout.in_front(PanelKind::recipes));
  CHECK_FALSE(layout.in_front(PanelKind::channels));
  layout.show(PanelKind::recipes);
  CHECK(layout.maximised() == PanelKind::recipes);
  layout.show(PanelKind::heads);
  CHECK_FALSE(layout.maximised().has_value());
  layout.maximise(PanelKind::heads);
  layout.maximise(std::nullopt);
  CHECK(layout.slots(window, kGap, kLeast).size() > 1);

  slots = layout.slots(window, kGap, kLeast);
  const auto leaf_of = [&](PanelKind panel) {
    for (const Layout::Slot& slot : layout.slots(window, kGap, kLeast))
      if (std::find(slot.panels.begin(), slot.panels.end(), panel) != slot.panels.end()) return slot.leaf;
    return -1;
  };
  layout.move(PanelKind::recipes, leaf_of(PanelKind::tokens));
  CHECK(leaf_of(PanelKind::recipes) == leaf_of(PanelKind::tokens));
  CHECK(layout.in_front(PanelKind::recipes));
  // What stays behind has a front still.
  CHECK((layout.in_front(PanelKind::scatter) || layout.in_front(PanelKind::validation)));
  const Layout before = layout;
  layout.move(PanelKind::heads, leaf_of(PanelKind::tokens));  // the last of its leaf
  layout.move(PanelKind::recipes, 0);                         // a split
  layout.move(PanelKind::recipes, -5);
  layout.move(PanelKind::recipes, 500);
  CHECK(layout == before);
  CHECK(panels_of(layout.slots(window, kGap, kLeast)).size() == kPanels.size());
}

TEST_CASE("a layout comes back from JSON as it was", "[viewer][layout]") {
  std::mt19937 random(10);
  Layout layout = Layout::standard();
  CHECK(Layout::from_json(layout.to_json()) == layout);
  const Area window{0, 0, 1600, 1000};
  for (int trial = 0; trial < 60; ++trial) {
    const PanelKind panel = kPanels.all()[random() % kPanels.size()];
    const auto slots = layout.slots(window, kGap, kLeast);
    const auto splitters = layout.splitters(window, kGap, kLeast);
    layout.move(panel, slots[random() % slots.size()].leaf);
    layout.show(kPanels.all()[random() % kPanels.size()]);
    if (!splitters.empty())
      layout.drag(splitters[random() % splitters.size()].split, static_cast<float>(random() % 99) - 49,
                  window, kGap, kLeast);
    layout.maximise(trial % 7 == 0 ? std::optional(panel) : std::nullopt);
    CHECK(Layout::from_json(nlohmann::json::parse(layout.to_json().dump())) == layout);
  }
}

TEST_CASE("what is no layout becomes one", "[viewer][layout]") {
  const char* none[] = {
      "null",
      "7",
      "[]",
      "{}",
      R"({"root": 3})",
      R"({"root": {"panels": []}})",
      R"({"root": {"panels": ["nobody"]}})",
      R"({"root": {"bar": "slanted", "share": 0.5, "parts": []}})",
      R"({"root": {"bar": "vertical", "share": 2, "parts": [{"panels": ["heads"]}, {"panels": ["recipes"]}]}})",
      R"({"root": {"bar": "vertical", "share": 0.5, "parts": [{"panels": ["heads"]}, {"panels": ["heads"]}]}})"};
  for (const char* text : none) CHECK(Layout::from_json(nlohmann::json::parse(text)) == Layout::standard());

  std::string deep = R"({"panels": ["recipes"]})";
  for (int i = 0; i < 40; ++i)
    deep = R"({"bar": "vertical", "share": 0.5, "parts": [{"panels": ["heads"]}, )" + deep + "]}";
  CHECK(Layout::from_json(nlohmann::json::parse("{\"root\": " + deep + "}")) == Layout::standard());

  // Panels that are missing stand with those that they usually stand with; unknown and double ones go.
  const Layout found = Layout::from_json(nlohmann::json::parse(
      R"({"maximised": "nobody", "root": {"bar": "horizontal", "share": 0.25,
          "parts": [{"panels": ["heads", "nobody", "heads"], "front": "nobody"}, {"panels": ["tokens", 3, "heads"]}]}})"));
  const auto slots = found.slots({0, 0, 806, 806}, kGap, kLeast);
  REQUIRE(slots.size() == 2);
  CHECK(panels_of(slots).size() == kPanels.size());
  CHECK(slots[0].area.height == 200);
  CHECK(slots[1].panels == std::vector{PanelKind::tokens, PanelKind::text, PanelKind::channels});
  CHECK_FALSE(found.maximised().has_value());
  CHECK(found.in_front(PanelKind::heads));
}
