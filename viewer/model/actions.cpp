#include "viewer/model/actions.hpp"

#include "viewer/model/choice.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <cctype>
#include <cstddef>
#include <string>
#include <utility>

namespace kvreplay::viewer {
namespace {

Shortcut plain(std::string key) { return {std::move(key), false, false, false}; }
Shortcut control(std::string key) { return {std::move(key), true, false, false}; }
Shortcut control_shift(std::string key) { return {std::move(key), true, true, false}; }
Shortcut shift(std::string key) { return {std::move(key), false, true, false}; }

/// Search words for users who do not know an action's name.
constexpr std::pair<ActionId, std::string_view> kWords[] = {
    {ActionId::open_path, "load dump"},
    {ActionId::reload, "refresh"},
    {ActionId::quit, "exit"},
    {ActionId::export_png, "figure picture image save screenshot"},
    {ActionId::export_svg, "figure vector paper pdf latex save"},
    {ActionId::export_csv, "table save"},
    {ActionId::copy_link, "url share"},
    {ActionId::find_text, "search"},
    {ActionId::evict_tokens, "drop remove prune"},
    {ActionId::fit_view, "all"},
    {ActionId::lock_ranges, "colors colours scale"},
    {ActionId::maximise, "fullscreen full screen"},
    {ActionId::toggle_theme, "theme dark mode appearance colors"},
    {ActionId::larger_text, "font bigger"},
    {ActionId::smaller_text, "font"},
    {ActionId::show_jobs, "progress memory cancel"},
    {ActionId::help, "shortcuts keyboard help"},
    {ActionId::tour, "tutorial introduction"},
    {ActionId::pin_run, "compare difference baseline"},
};

/// Actions that begin a group of their menu.
constexpr std::array kGroups = {
    ActionId::reload,    ActionId::save_session, ActionId::quit,
    ActionId::copy_csv,  ActionId::keep_tokens,  ActionId::pin_selection,
    ActionId::next_head, ActionId::next_layer,   ActionId::toggle_joint_zoom,
    ActionId::maximise,  ActionId::toggle_theme, ActionId::reset_layout,
};

std::vector<Action> all_actions() {
  std::vector<Action> table = {
      {ActionId::open_path, "File", "Open...", "a dump or a result folder", control("O")},
      {ActionId::locate_dump, "File", "Locate dump...", "says where the dump of the results in view lies"},
      {ActionId::reload, "File", "Reload", "reads changed files again; the view stays", plain("R"),
       plain("F5")},
      {ActionId::next_run, "File", "Next run", "among the open dumps and result folders", control("Tab")},
      {ActionId::pin_run, "File", "Pin run as reference",
       "panels hold other runs of its prompt against this one; again: no longer"},
      {ActionId::close_run, "File", "Close run", "closes the run in view", control("W")},
      {ActionId::save_session, "File", "Save session", "open runs, selection, layout and ranges",
       control("S")},
      {ActionId::export_png, "File", "Export panel as PNG", "the panel in use as a figure", control("E")},
      {ActionId::export_svg, "File", "Export panel as SVG", "the plot of the panel in use, for papers"},
      {ActionId::export_csv, "File", "Export panel as CSV", "the numbers behind the panel in use",
       control_shift("E")},
      {ActionId::quit, "File", "Quit", "leaves the program", control("Q")},
      {ActionId::undo, "Edit", "Undo", "the last change of view, selection or settings", control("Z")},
      {ActionId::redo, "Edit", "Redo", "what was undone", control_shift("Z"), control("Y")},
      {ActionId::copy_csv, "Edit", "Copy values as CSV", "the selected cell and what is pinned",
       control("C")},
      {ActionId::find_text, "Edit", "Find words...", "in the text; selects their tokens", control("F")},
      {ActionId::copy_drawing_command, "Edit", "Copy command that draws this",
       "the panel in use as a figure, from a session file"},
      {ActionId::copy_measuring_command, "Edit", "Copy command that measures this",
       "kvreplay evict with the settings A and B of What if"},
      {ActionId::copy_link, "Edit", "Copy link", "kvreplay view opens it at this run, panel and place"},
      {ActionId::keep_tokens, "Edit", "Keep tokens by hand",
       "the chosen ones, beyond the budget of the setting in view", plain("K")},
      {ActionId::pin_tokens, "Edit", "Pin tokens by hand",
       "the chosen ones, within the budget of the setting in view", shift("K")},
      {ActionId::evict_tokens, "Edit", "Evict tokens by hand", "the chosen ones, in the setting in view",
       plain("E")},
      {ActionId::leave_tokens, "Edit", "Unmark tokens",
       "the chosen ones are again as the setting in view has them", plain("U")},
      {ActionId::save_kept_set, "Edit", "Save kept set as .npy",
       "what the setting in view keeps of all heads, and the command that measures it"},
      {ActionId::pin_selection, "Edit", "Pin selection", "keeps its values in the inspector", control("D")},
      {ActionId::clear_selection, "Edit", "Clear selection", "queries, tokens and channels; the head stays",
       plain("Escape")},
      {ActionId::next_worst_head, "Go", "Next worst head", "down the table of worst heads", plain("N")},
      {ActionId::previous_worst_head, "Go", "Previous worst head", "up the table of worst heads", plain("P"),
       shift("N")},
      {ActionId::next_head, "Go", "Next head", "through all KV heads, layer by layer", plain("]")},
      {ActionId::previous_head, "Go", "Previous head", "through all KV heads, backwards", plain("[")},
      {ActionId::next_layer, "Go", "Next layer", "the same head one layer up", plain("}")},
      {ActionId::previous_layer, "Go", "Previous layer", "the same head one layer down", plain("{")},
      {ActionId::fit_view, "View", "Fit", "shows the whole matrix", plain("F")},
      {ActionId::one_to_one, "View", "1:1", "one cell a pixel", plain("1")},
      {ActionId::zoom_in, "View", "Zoom in", "at the pointer", plain("+"), plain("=")},
      {ActionId::zoom_out, "View", "Zoom out", "at the pointer", plain("-")},
      {ActionId::toggle_joint_zoom, "View", "Joint zoom", "heatmaps of one kind move together", plain("J")},
      {ActionId::lock_ranges, "View", "Lock ranges", "one colour range for all heatmaps of a quantity",
       plain("L")},
      {ActionId::flip_settings, "View", "Flip A and B", "shows the other setting while held", plain("X")},
      {ActionId::maximise, "View", "Maximise panel", "and back", plain("M")},
      {ActionId::next_panel, "View", "Next panel", "gives it the keyboard", plain("Tab")},
      {ActionId::show_jobs, "View", "Jobs", "running and failed computations, and the memory for answers",
       control("0")},
      {ActionId::toggle_theme, "View", "Light or dark", "changes the theme", plain("T")},
      {ActionId::larger_text, "View", "Larger text", "one point more", control("+"), control("=")},
      {ActionId::smaller_text, "View", "Smaller text", "one point less", control("-")},
      {ActionId::reset_layout, "View", "Reset layout", "panels as on a first start", control_shift("L")},
  };
  for (const PresetFacts& preset : kPresets)
    table.push_back({.id = ActionId::arrange,
                     .menu = "View",
                     .title = preset.title,
                     .hint = preset.hint,
                     .preset = preset.id,
                     .words = "preset layout arrange"});
  for (const PanelFacts& panel : kPanels)
    table.push_back({.id = ActionId::show_panel,
                     .menu = "Panels",
                     .title = panel.title,
                     .hint = panel.question,
                     .shortcut = panel.key == 0 ? Shortcut{} : control(std::string(1, panel.key)),
                     .panel = panel.id,
                     .words = panel.words});
  table.push_back({ActionId::open_palette, "Help", "Command palette", "finds an action by a few letters",
                   control_shift("P"), control("K")});
  table.push_back(
      {ActionId::help, "Help", "Keys and mouse", "everything on one page", plain("?"), plain("F1")});
  table.push_back({ActionId::tour, "Help", "Tour", "seven steps through the dashboard"});
  for (Action& each : table) {
    for (const auto& [id, words] : kWords)
      if (each.id == id) each.words = words;
    each.begins_group = std::ranges::find(kGroups, each.id) != kGroups.end();
  }
  // One line above all presets.
  const auto preset = std::ranges::find(table, ActionId::arrange, &Action::id);
  preset->begins_group = true;
  return table;
}

constexpr int kNoMatch = -1;

bool is_letter(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

/// Score of the best placement of the letters of `word`, in order, in `text`. Every letter counts 1, plus 6
/// at the start of a word, plus 4 directly after the previous letter.
int placed(std::string_view word, std::string_view text) {
  // best[j]: the letters so far, the last of them at j.
  std::vector<int> best(text.size(), kNoMatch), next(text.size(), kNoMatch);
  for (std::size_t i = 0; i < word.size(); ++i) {
    int before = i == 0 ? 0 : kNoMatch;  // the best that ends left of j - 1
    for (std::size_t j = 0; j < text.size(); ++j) {
      if (i > 0 && j > 1) before = std::max(before, best[j - 2]);
      const int beside = i > 0 && j > 0 && best[j - 1] != kNoMatch ? best[j - 1] + 4 : kNoMatch;
      const int reached = std::max(before, beside);
      const bool starts = j == 0 || !is_letter(text[j - 1]);
      next[j] =
          lower(word[i]) == lower(text[j]) && reached != kNoMatch ? reached + 1 + (starts ? 6 : 0) : kNoMatch;
    }
    best.swap(next);
  }
  return best.empty() ? kNoMatch : *std::max_element(best.begin(), best.end());
}

/// More than any letters that are found.
constexpr int kBegun = 10'000, kWhole = 2 * kBegun;

/// kWhole where one of the words of `text` is this one, kBegun where one begins with it, else 0.
int worded(std::string_view word, std::string_view text) {
  int best = 0;
  for (std::size_t at = 0; at + word.size() <= text.size(); ++at) {
    if (at > 0 && is_letter(text[at - 1])) continue;
    const std::size_t end = at + word.size();
    if (lower_case(text.substr(at, word.size())) != word) continue;
    best = std::max(best, end == text.size() || !is_letter(text[end]) ? kWhole : kBegun);
  }
  return best;
}

int score(std::string_view word, const Action& action) {
  const auto weighed = [&](std::string_view text, int weight, bool scattered) {
    const int found = placed(word, text), as_word = worded(word, text);
    // Scattered letters are found in any long text: they must make up words there.
    const bool enough =
        as_word > 0 || (scattered && (weight == 4 || found >= 3 * static_cast<int>(word.size())));
    return found == kNoMatch || !enough ? kNoMatch : as_word + weight * found;
  };
  return std::max({weighed(action.title, 4, true), weighed(action.words, 3, false),
                   weighed(action.menu, 2, true), weighed(action.hint, 1, true)});
}

}  // namespace

std::string Shortcut::text() const {
  if (empty()) return "";
  return std::string(control ? "Ctrl+" : "") + (alt ? "Alt+" : "") + (shift ? "Shift+" : "") + key;
}

const std::vector<Action>& actions() {
  static const std::vector<Action> all = all_actions();
  return all;
}

const Action& action(ActionId id) {
  for (const Action& each : actions())
    if (each.id == id) return each;
  assert(!"every action is in the table");
  return actions().front();
}

const Action* action_of(const Shortcut& shortcut) {
  if (shortcut.empty()) return nullptr;
  for (const Action& each : actions())
    if (each.shortcut == shortcut || each.also == shortcut) return &each;
  return nullptr;
}

std::vector<const Action*> matching_actions(std::string_view typed) {
  struct Found {
    const Action* action;
    int score;
  };
  const std::vector<std::string> words = typed_words(typed);
  std::vector<Found> found;
  for (const Action& each : actions()) {
    int sum = 0;
    for (const std::string& word : words) {
      const int points = score(word, each);
      sum = points == kNoMatch || sum == kNoMatch ? kNoMatch : sum + points;
    }
    // Among equal matches the one that leaves less of the title unsaid comes first; nothing else turns on it.
    const int unsaid = words.empty() ? 0 : static_cast<int>(each.title.size());
    if (sum != kNoMatch) found.push_back({&each, 64 * sum - unsaid});
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Found& one, const Found& other) { return one.score > other.score; });
  std::vector<const Action*> matching;
  matching.reserve(found.size());
  for (const Found& each : found) matching.push_back(each.action);
  return matching;
}

}  // namespace kvreplay::viewer
