#pragma once

#include "data/facts_table.hpp"
#include "viewer/model/camera.hpp"
#include "viewer/model/layout.hpp"
#include "viewer/model/panel_kind.hpp"
#include "viewer/model/selection.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay::viewer {

enum class ThemeChoice { system, light, dark };
struct ThemeFacts {
  ThemeChoice id;
  std::string_view name;
};
inline constexpr auto kThemes = facts_table<ThemeFacts>(
    {{ThemeChoice::system, "system"}, {ThemeChoice::light, "light"}, {ThemeChoice::dark, "dark"}});

/// State that is saved when the dashboard closes and restored when it opens.
struct Session {
  std::vector<std::string> runs;    ///< paths of open runs, in their order, UTF-8
  std::vector<std::string> scores;  ///< of the user's: NAME=FILE each
  std::vector<std::string> recent;  ///< paths that were opened, newest first, UTF-8
  bool tour_seen = false;
  Selection selection;
  std::optional<Index> pinned;  ///< number of the run that others are held against
  Layout layout = Layout::standard();
  ThemeChoice theme = ThemeChoice::system;
  float text_size = 13;  ///< points
  int window_width = 1280, window_height = 800;
  bool ranges_locked = false, joint_zoom = false;
  std::map<PanelKind, Camera> cameras;
  /// Settings shared by all panels.
  nlohmann::json settings = nlohmann::json::object();
  /// Settings of single panels, by the panel's name.
  nlohmann::json panels = nlohmann::json::object();
  bool operator==(const Session&) const = default;
};

nlohmann::json to_json(const Session& session);

/// A session as far as it was understood.
struct ReadSession {
  Session session;
  std::vector<std::string> remarks;  ///< one line for each key that was not
  std::vector<std::string> notes;    ///< of what earlier versions had and this one has not; no fault
  bool is_session = false;           ///< True if the text was written as a session: it has a version.
};
/// Never throws: a key that is missing takes its default, one that is unknown or bad does so with a remark.
ReadSession session_from_json(const nlohmann::json& json);

/// The file's text, and back. A text that is no JSON is a remark. Exact: session_of_text(text_of(s)) has s,
/// where its numbers are finite and its texts UTF-8.
std::string text_of(const Session& session);
ReadSession session_of_text(std::string_view text);

inline constexpr std::size_t kMostRecent = 10;

/// Moves a path to the front of the recently opened ones: newest first, no duplicates, at most kMostRecent.
inline void add_recent(std::vector<std::string>& recent, const std::string& path) {
  std::erase(recent, path);
  recent.insert(recent.begin(), path);
  if (recent.size() > kMostRecent) recent.resize(kMostRecent);
}

}  // namespace kvreplay::viewer
