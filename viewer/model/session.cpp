#include "viewer/model/session.hpp"

#include "viewer/model/session_keys.hpp"
#include "viewer/model/token_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

namespace kvreplay::viewer {
namespace {

using Json = nlohmann::json;
constexpr int kVersion = 1;
constexpr int kMostNesting = 64;

template <class T>
Json optional_json(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

// --- selection

Json selection_to_json(const Selection& selection) {
  return {
      {"run", selection.run},
      {"layer", selection.layer},
      {"kv_head", selection.kv_head},
      {"query_head", optional_json(selection.query_head)},
      {"row", optional_json(selection.row)},
      {"token", optional_json(selection.token)},
      {"channels",
       selection.channels ? Json::array({selection.channels->first, selection.channels->second}) : Json()},
      {"tokens", selection.tokens}};
}

/// A list of indices; false where it is none.
bool read_indices(const Json& json, std::vector<Index>& into) {
  if (!json.is_array()) return false;
  std::vector<Index> list;
  for (const Json& each : json) {
    if (!each.is_number_integer() || each.get<std::int64_t>() < 0) return false;
    list.push_back(each.get<Index>());
  }
  into = std::move(list);
  return true;
}

void read_selection(const Json& json, const std::string& where, std::vector<std::string>& remarks,
                    Selection& into) {
  Keys keys(json, where, remarks);
  keys.read("run", into.run, std::size_t{0}, std::size_t{1} << 31U);
  keys.read("layer", into.layer, Index{0}, Keys::kMostIndex);
  keys.read("kv_head", into.kv_head, Index{0}, Keys::kMostIndex);
  keys.read("query_head", into.query_head);
  keys.read("row", into.row);
  keys.read("token", into.token);
  if (const Json* pair = keys.at("channels")) {
    std::vector<Index> both;
    if (read_indices(*pair, both) && both.size() == 2)
      into.channels = ChannelPair{both[0], both[1]};
    else
      keys.bad("channels", "two indices", *pair);
  }
  if (const Json* list = keys.at("tokens"); list != nullptr && !read_indices(*list, into.tokens))
    keys.bad("tokens", "a list of indices", *list);
}

// --- cameras

Json axis_to_json(const AxisView& axis) {
  return {{"start", axis.start}, {"cells_per_pixel", axis.cells_per_pixel}};
}

AxisView read_axis(const Json& json, const std::string& where, std::vector<std::string>& remarks) {
  AxisView axis;
  Keys keys(json, where, remarks);
  keys.read("start", axis.start, -1e15, 1e15);
  keys.read("cells_per_pixel", axis.cells_per_pixel, 1e-9, 1e15);
  return axis;
}

Camera read_camera(const Json& json, const std::string& where, std::vector<std::string>& remarks) {
  Camera camera;
  Keys keys(json, where, remarks);
  if (const Json* x = keys.at("x")) camera.x = read_axis(*x, keys.where("x"), remarks);
  if (const Json* y = keys.at("y")) camera.y = read_axis(*y, keys.where("y"), remarks);
  return camera;
}

bool is_former(const Json& name) {
  return name.is_string() && std::ranges::find(kFormerPanels, name.get<std::string>()) != kFormerPanels.end();
}

/// Takes panels of earlier versions out of a list of panels. The names that it had.
std::vector<std::string> take_former(Json& list) {
  std::vector<std::string> names;
  Json rest = Json::array();
  for (const Json& name : list)
    if (is_former(name))
      names.push_back(name.get<std::string>());
    else
      rest.push_back(name);
  list = std::move(rest);
  return names;
}

/// Takes them out of a layout's node and all below it, with splits of which a part held no others. False
/// where nothing is left.
bool take_former_panels(Json& node, std::vector<std::string>& names) {
  if (!node.is_object()) return true;
  if (const auto parts = node.find("parts"); parts != node.end() && parts->is_array() && parts->size() == 2) {
    const bool first = take_former_panels((*parts)[0], names),
               second = take_former_panels((*parts)[1], names);
    if (first != second) node = Json((*parts)[first ? 0 : 1]);
    return first || second;
  }
  const auto panels = node.find("panels");
  if (panels == node.end() || !panels->is_array()) return true;
  const std::vector<std::string> taken = take_former(*panels);
  names.insert(names.end(), taken.begin(), taken.end());
  if (panels->empty()) return taken.empty();
  if (const auto front = node.find("front"); front != node.end() && is_former(*front)) *front = (*panels)[0];
  return true;
}

/// A layout with the panels of this version, and a note on the others.
Json current_layout(Json layout, std::vector<std::string>& notes) {
  if (!layout.is_object()) return layout;
  std::vector<std::string> names;
  if (const auto root = layout.find("root"); root != layout.end() && !take_former_panels(*root, names))
    return nullptr;
  if (const auto whole = layout.find("maximised"); whole != layout.end() && is_former(*whole))
    *whole = nullptr;
  if (const auto shown = layout.find("shown"); shown != layout.end() && shown->is_array())
    take_former(*shown);
  if (!names.empty())
    notes.push_back(
        fmt::format("session: panels of an earlier version are left out: {}", fmt::join(names, ", ")));
  return layout;
}

/// A layout without the panels that a session does not name: they are newer than it.
Json without_later_panels(Json layout, const std::string& session) {
  const std::function<void(Json&)> strip = [&](Json& node) {
    if (node.contains("parts")) {
      for (Json& part : node["parts"]) strip(part);
      return;
    }
    Json named = Json::array();
    for (const Json& panel : node["panels"])
      if (session.find(panel.dump()) != std::string::npos) named.push_back(panel);
    node["panels"] = std::move(named);
  };
  strip(layout["root"]);
  return layout;
}

void read_session(const Json& json, ReadSession& read_into) {
  Session& into = read_into.session;
  std::vector<std::string>& remarks = read_into.remarks;
  Keys keys(json, "session", remarks);
  int version = kVersion;
  keys.read("version", version, kVersion, kVersion);
  const auto read_texts = [&](const std::string& key, const char* expected, std::vector<std::string>& list) {
    const Json* found = keys.at(key, expected, &Json::is_array);
    if (found == nullptr) return;
    if (std::all_of(found->begin(), found->end(), [](const Json& text) { return text.is_string(); }))
      list = found->get<std::vector<std::string>>();
    else
      keys.bad(key, expected, *found);
  };
  read_texts("runs", "a list of paths", into.runs);
  read_texts("scores", "a list of NAME=FILE", into.scores);
  read_texts("recent", "a list of paths", into.recent);
  keys.read("tour_seen", into.tour_seen);
  if (const Json* selection = keys.at("selection"))
    read_selection(*selection, keys.where("selection"), remarks, into.selection);
  keys.read("pinned", into.pinned);
  if (const Json* written = keys.at("layout")) {
    const Json layout = current_layout(*written, read_into.notes);
    into.layout = Layout::from_json(layout);
    Json read = without_later_panels(into.layout.to_json(), layout.dump());
    if (layout.is_object() && !layout.contains("shown")) read.erase("shown");  // nor is it in earlier ones
    if (!layout.is_null() && read != layout) keys.bad("layout", "a layout of panels, each once", *written);
  }
  keys.read("theme", into.theme, kThemes);
  keys.read("text_size", into.text_size, 4.0F, 96.0F);
  if (const Json* window = keys.at("window")) {
    Keys sides(*window, keys.where("window"), remarks);
    sides.read("width", into.window_width, 64, 1 << 16);
    sides.read("height", into.window_height, 64, 1 << 16);
  }
  keys.read("ranges_locked", into.ranges_locked);
  keys.read("joint_zoom", into.joint_zoom);
  if (const Json* cameras = keys.at("cameras")) {
    Keys panels(*cameras, keys.where("cameras"), remarks);
    for (const PanelFacts& panel : kPanels) {
      const std::string name(panel.name);
      if (const Json* camera = panels.at(name))
        into.cameras[panel.id] = read_camera(*camera, panels.where(name), remarks);
    }
  }
  if (const Json* found = keys.at("settings", "an object", &Json::is_object)) into.settings = *found;
  if (const Json* found = keys.at("panels", "an object", &Json::is_object)) into.panels = *found;
}

}  // namespace

Json to_json(const Session& session) {
  Json cameras = Json::object();
  for (const auto& [panel, camera] : session.cameras)
    cameras[std::string(name_of(panel))] = {{"x", axis_to_json(camera.x)}, {"y", axis_to_json(camera.y)}};
  return {{"version", kVersion},
          {"runs", session.runs},
          {"pinned", session.pinned ? Json(*session.pinned) : Json()},
          {"scores", session.scores},
          {"recent", session.recent},
          {"tour_seen", session.tour_seen},
          {"selection", selection_to_json(session.selection)},
          {"layout", session.layout.to_json()},
          {"theme", kThemes[session.theme].name},
          {"text_size", session.text_size},
          {"window", {{"width", session.window_width}, {"height", session.window_height}}},
          {"ranges_locked", session.ranges_locked},
          {"joint_zoom", session.joint_zoom},
          {"cameras", cameras},
          {"settings", session.settings},
          {"panels", session.panels}};
}

ReadSession session_from_json(const Json& json) {
  ReadSession read;
  read_session(json, read);
  read.is_session = json.is_object() && json.contains("version");
  return read;
}

std::string text_of(const Session& session) {
  return to_json(session).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

ReadSession session_of_text(std::string_view text) {
  // Values nested deeper than any session are dropped while parsing: copying them could exhaust the stack.
  bool too_deep = false;
  const Json json = Json::parse(
      text,
      [&](int depth, Json::parse_event_t, const Json&) {
        too_deep = too_deep || depth > kMostNesting;
        return depth <= kMostNesting;
      },
      false);
  ReadSession read;
  if (json.is_discarded())
    read.remarks.push_back("session: expected JSON, found \"" + visible_text(text.substr(0, 160), 40) + "\"");
  else
    read = session_from_json(json);
  if (too_deep) read.remarks.push_back("session: values nested too deep were left out");
  return read;
}

}  // namespace kvreplay::viewer
