#pragma once

#include "viewer/model/layout.hpp"
#include "viewer/model/panel_kind.hpp"

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// The one table of everything that can be done, which feeds the menus, the shortcuts, the palette and the
// help.

namespace kvreplay::viewer {

enum class ActionId {
  open_palette,
  help,
  show_jobs,
  open_path,
  locate_dump,
  reload,
  close_run,
  next_run,
  quit,
  save_session,
  export_png,
  export_svg,
  export_csv,
  copy_csv,
  find_text,
  undo,
  redo,
  clear_selection,
  pin_selection,
  next_head,
  previous_head,
  next_worst_head,
  previous_worst_head,
  next_layer,
  previous_layer,
  fit_view,
  one_to_one,
  zoom_in,
  zoom_out,
  maximise,
  next_panel,
  toggle_theme,
  toggle_joint_zoom,
  lock_ranges,
  flip_settings,
  larger_text,
  smaller_text,
  reset_layout,
  keep_tokens,
  pin_tokens,
  evict_tokens,
  leave_tokens,
  save_kept_set,
  show_panel,
  copy_drawing_command,
  copy_measuring_command,
  copy_link,
  arrange,
  tour,
  pin_run,
};

/// Keys as this table has them: a letter in capitals, another printable character as typed (without the shift
/// that the keyboard may take for it), or one of the names below.
struct Shortcut {
  std::string key;  ///< "A", "7", "?", "+", "Left", "Right", "Up", "Down", "Escape", "Enter", "Tab", "Space",
                    ///< "F1", ...
  bool control = false, shift = false, alt = false;
  bool operator==(const Shortcut&) const = default;
  bool empty() const { return key.empty(); }
  std::string text() const;  ///< "Ctrl+Shift+P"; empty where there is none
};

struct Action {
  ActionId id;
  std::string_view menu;  ///< one of kMenus
  std::string_view title;
  std::string_view hint;                ///< one clause for the palette and the help
  Shortcut shortcut = {};               ///< empty: none
  Shortcut also = {};                   ///< a second one, which menus do not name; empty: none
  std::optional<PanelKind> panel = {};  ///< that show_panel brings to the front
  std::optional<Preset> preset = {};    ///< that `arrange` arranges for
  std::string_view words = {};          ///< others that people look for it by, in small letters
  bool begins_group = false;            ///< a line stands above it in the menu
};

/// From left to right.
inline constexpr std::array<std::string_view, 6> kMenus = {"File", "Edit", "Go", "View", "Panels", "Help"};

/// Menu by menu, in the order of kMenus.
const std::vector<Action>& actions();
/// The first of this id.
const Action& action(ActionId id);
/// The action of a key press; null where there is none.
const Action* action_of(const Shortcut& shortcut);

/// The actions that match every word typed, best first: whole words before beginnings of words, these before
/// letters in order; in each of these the title before other words for it, the menu and the hint, where
/// letters must be nearly a word. An empty query gives all in the table's order.
std::vector<const Action*> matching_actions(std::string_view typed);

}  // namespace kvreplay::viewer
