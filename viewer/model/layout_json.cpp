#include "viewer/model/layout.hpp"

#include <algorithm>

// A layout as a session keeps it: {"maximised": panel or null, "root": node, "shown": [names]}, where a node
// is
// {"panels": [names], "front": name} or {"bar": "vertical" or "horizontal", "share": 0..1, "parts": [node,
// node]}.

namespace kvreplay::viewer {
namespace {

constexpr int kMostDepth = 16;

std::optional<PanelKind> panel_in(const nlohmann::json& json) {
  return json.is_string() ? kPanels.named(json.get_ref<const std::string&>()) : std::nullopt;
}

bool holds(const std::vector<PanelKind>& panels, PanelKind panel) {
  return std::find(panels.begin(), panels.end(), panel) != panels.end();
}

}  // namespace

nlohmann::json Layout::node_to_json(int number) const {
  const Node& at = node(number);
  nlohmann::json json = nlohmann::json::object();
  if (at.leaf) {
    json["panels"] = nlohmann::json::array();
    for (const PanelKind panel : at.panels) json["panels"].push_back(std::string(name_of(panel)));
    json["front"] = std::string(name_of(at.panels[at.front]));
  } else {
    json["bar"] = at.vertical ? "vertical" : "horizontal";
    json["share"] = at.share;
    json["parts"] = {node_to_json(at.first), node_to_json(at.second)};
  }
  return json;
}

nlohmann::json Layout::to_json() const {
  nlohmann::json json = nlohmann::json::object();
  if (maximised_)
    json["maximised"] = std::string(name_of(*maximised_));
  else
    json["maximised"] = nullptr;
  json["root"] = nodes_.empty() ? nlohmann::json() : node_to_json(0);
  json["shown"] = nlohmann::json::array();
  for (const PanelKind panel : shown_) json["shown"].push_back(std::string(name_of(panel)));
  return json;
}

/// Appends a node and all below it; false where it is none.
bool Layout::add_from_json(const nlohmann::json& json, int depth) {
  if (!json.is_object() || depth > kMostDepth) return false;
  if (const auto list = json.find("panels"); list != json.end()) {
    if (!list->is_array()) return false;
    std::vector<PanelKind> panels;
    for (const nlohmann::json& name : *list) {
      const std::optional<PanelKind> panel = panel_in(name);
      if (panel && leaf_of(*panel) < 0 && !holds(panels, *panel)) panels.push_back(*panel);
    }
    if (panels.empty()) return false;
    const std::optional<PanelKind> front = panel_in(json.value("front", nlohmann::json()));
    const auto at = front ? std::find(panels.begin(), panels.end(), *front) : panels.end();
    add_leaf(panels, at == panels.end() ? 0 : static_cast<std::size_t>(at - panels.begin()));
    return true;
  }
  const nlohmann::json bar = json.value("bar", nlohmann::json()),
                       share = json.value("share", nlohmann::json());
  const nlohmann::json parts = json.value("parts", nlohmann::json());
  if ((bar != "vertical" && bar != "horizontal") || !share.is_number() || !parts.is_array() ||
      parts.size() != 2)
    return false;
  const auto of_first = share.get<float>();
  if (!(of_first > 0 && of_first < 1)) return false;
  const int at = add_split(bar == "vertical", of_first);
  const auto place = static_cast<std::size_t>(at);
  nodes_[place].first = static_cast<int>(nodes_.size());
  if (!add_from_json(parts[0], depth + 1)) return false;
  nodes_[place].second = static_cast<int>(nodes_.size());
  return add_from_json(parts[1], depth + 1);
}

Layout Layout::from_json(const nlohmann::json& json) {
  const Layout usual = standard();
  Layout layout;
  if (!json.is_object() || !layout.add_from_json(json.value("root", nlohmann::json()), 0)) return usual;
  for (const PanelKind panel : kPanels.all()) {
    if (layout.leaf_of(panel) >= 0) continue;
    // With those that it usually stands with, else in the first leaf.
    const std::vector<PanelKind>& companions = usual.node(usual.leaf_of(panel)).panels;
    int at = -1;
    for (const PanelKind companion : companions)
      if (at < 0) at = layout.leaf_of(companion);
    for (std::size_t i = 0; at < 0; ++i)
      if (layout.nodes_[i].leaf) at = static_cast<int>(i);
    layout.nodes_[at].panels.push_back(panel);
  }
  layout.maximised_ = panel_in(json.value("maximised", nlohmann::json()));
  if (const nlohmann::json shown = json.value("shown", nlohmann::json()); shown.is_array())
    for (const nlohmann::json& name : shown)
      if (const auto panel = panel_in(name); panel && !holds(layout.shown_, *panel))
        layout.shown_.push_back(*panel);
  return layout;
}

}  // namespace kvreplay::viewer
