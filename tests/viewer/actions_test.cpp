#include "viewer/model/actions.hpp"

#include "tests/support/catch.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

using namespace kvreplay::viewer;

namespace {

const Action& match(std::string_view typed) {
  const auto found = matching_actions(typed);
  REQUIRE_FALSE(found.empty());
  return *found.front();
}

ActionId first_of(std::string_view typed) { return match(typed).id; }

ActionId pressed(const Shortcut& shortcut) {
  const Action* found = action_of(shortcut);
  REQUIRE(found != nullptr);
  return found->id;
}

}  // namespace

TEST_CASE("every action is in the table once", "[viewer][actions]") {
  std::set<std::tuple<ActionId, std::optional<PanelKind>, std::optional<Preset>>> ids;
  std::set<std::string_view> titles;
  std::vector<std::string_view> menus;
  for (const Action& each : actions()) {
    INFO(each.title);
    CHECK(ids.insert({each.id, each.panel, each.preset}).second);
    CHECK((each.id == ActionId::arrange) == each.preset.has_value());
    CHECK((each.id == ActionId::show_panel) == each.panel.has_value());
    CHECK(titles.insert(each.title).second);
    CHECK_FALSE(each.title.empty());
    CHECK_FALSE(each.hint.empty());
    if (!each.panel && !each.preset) CHECK(&action(each.id) == &each);
    if (menus.empty() || menus.back() != each.menu) menus.push_back(each.menu);
  }
  // From the first to the last of the enumeration.
  for (int id = 0; id < static_cast<int>(ActionId::show_panel); ++id)
    CHECK(ids.count({static_cast<ActionId>(id), std::nullopt, std::nullopt}) == 1);
  for (const PanelFacts& panel : kPanels)
    CHECK(ids.count({ActionId::show_panel, panel.id, std::nullopt}) == 1);
  for (const PresetFacts& preset : kPresets)
    CHECK(ids.count({ActionId::arrange, std::nullopt, preset.id}) == 1);
  CHECK(ids.count({ActionId::tour, std::nullopt, std::nullopt}) == 1);
  CHECK(menus == std::vector<std::string_view>(kMenus.begin(), kMenus.end()));
}

TEST_CASE("no two actions share a key", "[viewer][actions]") {
  std::map<std::string, std::string_view> taken;
  for (const Action& each : actions())
    for (const Shortcut& shortcut : {each.shortcut, each.also}) {
      if (shortcut.empty()) continue;
      INFO(shortcut.text() << ": " << each.title << " and " << taken[shortcut.text()]);
      CHECK(taken[shortcut.text()].empty());
      taken[shortcut.text()] = each.title;
      CHECK(action_of(shortcut) == &each);
      const std::string& key = shortcut.key;
      const bool sign = key.size() == 1 && key[0] > ' ' && !(key[0] >= 'a' && key[0] <= 'z');
      const std::set<std::string> names = {"Left",  "Right", "Up",    "Down", "Escape",
                                           "Enter", "Tab",   "Space", "F1",   "F5"};
      CHECK((sign || names.count(key) == 1));
      // A sign comes as typed: shift with it would never be told.
      const bool letter = key.size() > 1 || (key[0] >= 'A' && key[0] <= 'Z');
      CHECK((letter || !shortcut.shift));
    }
  CHECK(action_of({}) == nullptr);
  CHECK(action_of({"N", true, true, true}) == nullptr);
}

TEST_CASE("keys do what people expect of them", "[viewer][actions]") {
  CHECK(pressed({"N"}) == ActionId::next_worst_head);
  CHECK(pressed({"P"}) == ActionId::previous_worst_head);
  CHECK(pressed({"P", true, true}) == ActionId::open_palette);
  CHECK(pressed({"K", true}) == ActionId::open_palette);
  CHECK(pressed({"?"}) == ActionId::help);
  CHECK(pressed({"Z", true}) == ActionId::undo);
  CHECK(pressed({"Z", true, true}) == ActionId::redo);
  CHECK(pressed({"Y", true}) == ActionId::redo);
  CHECK(pressed({"X"}) == ActionId::flip_settings);
  CHECK(pressed({"1"}) == ActionId::one_to_one);
  CHECK(pressed({"]"}) == ActionId::next_head);
  CHECK(pressed({"{"}) == ActionId::previous_layer);
  CHECK(Shortcut{"P", true, true}.text() == "Ctrl+Shift+P");
  CHECK(Shortcut{"+", true}.text() == "Ctrl++");
  CHECK(Shortcut{"Left", false, false, true}.text() == "Alt+Left");
  CHECK(Shortcut{}.text().empty());
}

TEST_CASE("the palette finds by a few letters", "[viewer][actions]") {
  CHECK(first_of("undo") == ActionId::undo);
  CHECK(first_of("und") == ActionId::undo);
  CHECK(first_of("nwh") == ActionId::next_worst_head);
  CHECK(first_of("next head") == ActionId::next_head);
  CHECK(first_of("png") == ActionId::export_png);
  CHECK(first_of("CSV exp") == ActionId::export_csv);
  CHECK(match("tok").panel == PanelKind::tokens);
  CHECK(match("wh if").panel == PanelKind::what_if);
  CHECK(first_of("dark") == ActionId::toggle_theme);
  CHECK(first_of("1:1") == ActionId::one_to_one);
  CHECK(first_of("quit") == ActionId::quit);
  CHECK(first_of("fit") == ActionId::fit_view);
  CHECK(match("policy").panel == PanelKind::what_if);  // by its hint
  CHECK(first_of("file re") == ActionId::reload);      // by its menu

  CHECK(matching_actions("").size() == actions().size());
  CHECK(matching_actions("  ").size() == actions().size());
  for (std::size_t i = 0; i < actions().size(); ++i) CHECK(matching_actions("")[i] == &actions()[i]);
  CHECK(matching_actions("zzqx").empty());
  CHECK(matching_actions("undo zzqx").empty());
  for (const Action& each : actions()) {
    INFO(each.title);
    CHECK(matching_actions(each.title).front() == &each);
    std::set<const Action*> once;
    for (const Action* found : matching_actions(each.title)) CHECK(once.insert(found).second);
  }
}

TEST_CASE("the palette knows the words that people have for things", "[viewer][actions]") {
  CHECK(match("loss map").panel == PanelKind::heads);
  CHECK(match("prune").panel == PanelKind::channels);
  CHECK(match("quantize").panel == PanelKind::recipes);
  CHECK(match("compression").panel == PanelKind::what_if);
  CHECK(first_of("theme") == ActionId::toggle_theme);
  CHECK(first_of("dark mode") == ActionId::toggle_theme);
  CHECK(first_of("evict") == ActionId::evict_tokens);
  CHECK(first_of("exit") == ActionId::quit);
  CHECK(first_of("search") == ActionId::find_text);
  const auto maps = matching_actions("heatmap");
  REQUIRE(maps.size() >= 2);
  for (std::size_t i = 0; i < 2; ++i)
    CHECK((maps[i]->panel == PanelKind::heads || maps[i]->panel == PanelKind::tokens));
  for (const Action& each : actions())
    for (const char c : each.words) CHECK((c == ' ' || (c >= 'a' && c <= 'z')));
}

TEST_CASE("whole words stand before beginnings of words, and these before letters", "[viewer][actions]") {
  const auto place = [](std::string_view typed, auto is) {
    const auto found = matching_actions(typed);
    return std::ranges::find_if(found, [&](const Action* each) { return is(*each); }) - found.begin();
  };
  const auto panel = [](PanelKind kind) { return [kind](const Action& each) { return each.panel == kind; }; };
  const auto id = [](ActionId wanted) { return [wanted](const Action& each) { return each.id == wanted; }; };
  // "head" in "Head map" and "Next head"; begun in "heads" of hints; letters of "the dashboard" are none.
  CHECK(place("head", panel(PanelKind::heads)) < place("head", panel(PanelKind::budgets)));
  CHECK(place("lock", id(ActionId::lock_ranges)) == 0);
  CHECK(place("link", id(ActionId::copy_link)) == 0);
  const auto found = matching_actions("co");
  REQUIRE(found.size() > 3);
  CHECK(std::string_view(found.front()->title).starts_with("Co"));
}

TEST_CASE("menus have groups, none of which begins a menu", "[viewer][actions]") {
  std::map<std::string_view, int> groups;
  std::string_view menu;
  for (const Action& each : actions()) {
    if (each.menu != menu) CHECK_FALSE(each.begins_group);
    menu = each.menu;
    groups[menu] += each.begins_group ? 1 : 0;
  }
  CHECK(groups["File"] >= 2);
  CHECK(groups["Edit"] >= 2);
  CHECK(groups["View"] >= 3);
}
