#include "viewer/model/actions.hpp"

#include <cassert>
#include <utility>

namespace kvreplay::viewer {
namespace {

Shortcut plain(std::string key) { return {std::move(key), false, false, false}; }
Shortcut control(std::string key) { return {std::move(key), true, false, false}; }
Shortcut control_shift(std::string key) { return {std::move(key), true, true, false}; }
Shortcut shift(std::string key) { return {std::move(key), false, true, false}; }

std::vector<Action> all_actions() {
  std::vector<Action> table = {
      {ActionId::open_path, "File", "Open...", control("O"), "a dump or a result folder"},
      {ActionId::locate_dump,
       "File",
       "Locate dump...",
       {},
       "says where the dump of the results in view lies"},
      {ActionId::reload, "File", "Reload", plain("R"), "reads changed files again; the view stays",
       plain("F5")},
      {ActionId::next_run, "File", "Next run", control("Tab"), "among the open dumps and result folders"},
      {ActionId::pin_run,
       "File",
       "Pin run as reference",
       {},
       "panels hold other runs of its prompt against this one; again: no longer"},
      {ActionId::close_run, "File", "Close run", control("W"), "closes the run in view"},
      {ActionId::save_session, "File", "Save session", control("S"),
       "open runs, selection, layout and ranges"},
      {ActionId::export_png, "File", "Export panel as PNG", control("E"), "the panel in use as a figure"},
      {ActionId::export_csv, "File", "Export panel as CSV", control_shift("E"),
       "the numbers behind the panel in use"},
      {ActionId::quit, "File", "Quit", control("Q"), "leaves the program"},
      {ActionId::undo, "Edit", "Undo", control("Z"), "the last change of view, selection or settings"},
      {ActionId::redo, "Edit", "Redo", control_shift("Z"), "what was undone", control("Y")},
      {ActionId::copy_csv, "Edit", "Copy values as CSV", control("C"),
       "the selected cell and the pinned rows"},
      {ActionId::find_text, "Edit", "Find words...", control("F"), "in the text; selects their tokens"},
      {ActionId::copy_drawing_command,
       "Edit",
       "Copy command that draws this",
       {},
       "the panel in use as a figure, from a session file"},
      {ActionId::copy_measuring_command,
       "Edit",
       "Copy command that measures this",
       {},
       "kvreplay evict with the settings A and B of What if"},
      {ActionId::copy_link, "Edit", "Copy link", {}, "kvreplay view opens it at this run, panel and place"},
      {ActionId::keep_tokens, "Edit", "Keep tokens by hand", plain("K"),
       "the chosen ones, beyond the budget of the setting in view"},
      {ActionId::pin_tokens, "Edit", "Pin tokens by hand", shift("K"),
       "the chosen ones, within the budget of the setting in view"},
      {ActionId::evict_tokens, "Edit", "Evict tokens by hand", plain("E"),
       "the chosen ones, in the setting in view"},
      {ActionId::leave_tokens, "Edit", "Unmark tokens", plain("U"),
       "the chosen ones are again as the setting in view has them"},
      {ActionId::save_kept_set,
       "Edit",
       "Save kept set as .npy",
       {},
       "what the setting in view keeps of all heads, and the command that measures it"},
      {ActionId::pin_selection, "Edit", "Pin selection", control("D"), "keeps its values in the inspector"},
      {ActionId::clear_selection, "Edit", "Clear selection", plain("Escape"),
       "rows, tokens and channels; the head stays"},
      {ActionId::next_worst_head, "Go", "Next worst head", plain("N"), "down the table of worst heads"},
      {ActionId::previous_worst_head, "Go", "Previous worst head", plain("P"), "up the table of worst heads",
       shift("N")},
      {ActionId::next_head, "Go", "Next head", plain("]"), "through all KV heads, layer by layer"},
      {ActionId::previous_head, "Go", "Previous head", plain("["), "through all KV heads, backwards"},
      {ActionId::next_layer, "Go", "Next layer", plain("}"), "the same head one layer up"},
      {ActionId::previous_layer, "Go", "Previous layer", plain("{"), "the same head one layer down"},
      {ActionId::fit_view, "View", "Fit", plain("F"), "shows the whole matrix"},
      {ActionId::one_to_one, "View", "1:1", plain("1"), "one cell a pixel"},
      {ActionId::zoom_in, "View", "Zoom in", plain("+"), "at the pointer", plain("=")},
      {ActionId::zoom_out, "View", "Zoom out", plain("-"), "at the pointer"},
      {ActionId::toggle_joint_zoom, "View", "Joint zoom", plain("J"), "heatmaps of one kind move together"},
      {ActionId::lock_ranges, "View", "Lock ranges", plain("L"),
       "one colour range for all heatmaps of a quantity"},
      {ActionId::flip_settings, "View", "Flip A and B", plain("X"), "shows the other setting while held"},
      {ActionId::maximise, "View", "Maximise panel", plain("M"), "and back"},
      {ActionId::next_panel, "View", "Next panel", plain("Tab"), "gives it the keyboard"},
      {ActionId::toggle_theme, "View", "Light or dark", plain("T"), "changes the theme"},
      {ActionId::larger_text, "View", "Larger text", control("+"), "one point more", control("=")},
      {ActionId::smaller_text, "View", "Smaller text", control("-"), "one point less"},
      {ActionId::reset_layout, "View", "Reset layout", control_shift("L"), "panels as on a first start"},
  };
  for (const PresetFacts& preset : kPresets)
    table.push_back({.id = ActionId::arrange,
                     .menu = "View",
                     .title = preset.title,
                     .shortcut = {},
                     .hint = preset.hint,
                     .preset = preset.id});
  for (const PanelFacts& panel : kPanels)
    table.push_back({.id = ActionId::show_panel,
                     .menu = "Panels",
                     .title = panel.title,
                     .shortcut = panel.key == 0 ? Shortcut{} : control(std::string(1, panel.key)),
                     .hint = panel.question,
                     .panel = panel.id});
  table.push_back({ActionId::open_palette, "Help", "Command palette", control_shift("P"),
                   "finds an action by a few letters", control("K")});
  table.push_back(
      {ActionId::help, "Help", "Keys and mouse", plain("?"), "everything on one page", plain("F1")});
  table.push_back({ActionId::tour, "Help", "Tour", {}, "six steps through the dashboard"});
  return table;
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

}  // namespace kvreplay::viewer
