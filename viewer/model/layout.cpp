#include "viewer/model/layout.hpp"

#include <algorithm>
#include <cmath>

// A layout as a session keeps it: {"maximised": panel or null, "root": node, "shown": [names]}, where a node
// is
// {"panels": [names], "front": name} or {"bar": "vertical" or "horizontal", "share": 0..1, "parts": [node,
// node]}.

namespace kvreplay::viewer {
namespace {

/// A part is never dragged to nothing, so that it can be found again in a larger window.
constexpr float kLeastShare = 0.02F;

/// Lengths that two parts of one axis need. Without room for both side by side, the larger one needs no more
/// than a single leaf; if that is not enough, neither does.
struct Needs {
  float first = 0, second = 0;
  bool fit(float whole) const { return first + second <= whole; }
};
Needs needs_within(float whole, Needs wanted, float least) {
  if (wanted.fit(whole)) return wanted;
  Needs one = wanted;
  (wanted.first > wanted.second ? one.first : one.second) = least;
  return one.fit(whole) ? one : Needs{least, least};
}

constexpr int kMostDepth = 16;

std::optional<PanelKind> panel_in(const nlohmann::json& json) {
  return json.is_string() ? kPanels.named(json.get_ref<const std::string&>()) : std::nullopt;
}

bool holds(const std::vector<PanelKind>& panels, PanelKind panel) {
  return std::find(panels.begin(), panels.end(), panel) != panels.end();
}

}  // namespace

/// Division of a split's area; lengths are along the divided axis.
struct Layout::Parts {
  float whole = 0, first_length = 0;
  Needs needs;
  bool fit = true;  ///< else there is no room for both
  Area first, bar, second;
};

int Layout::add_leaf(std::vector<PanelKind> panels, std::size_t front) {
  Node leaf;
  leaf.panels = std::move(panels);
  leaf.front = front;
  nodes_.push_back(std::move(leaf));
  return static_cast<int>(nodes_.size()) - 1;
}

int Layout::add_split(bool vertical, float share) {
  Node split;
  split.leaf = false;
  split.vertical = vertical;
  split.share = share;
  nodes_.push_back(std::move(split));
  return static_cast<int>(nodes_.size()) - 1;
}

Layout Layout::standard() {
  static const Layout usual = *of_json(nlohmann::json::parse(kPresets[Preset::loss].layout));
  return usual;
}

float Layout::needed(int number, bool width, float gap, Extent least) const {
  const Node& at = node(number);
  if (at.leaf) return least.along(width);
  const float first = needed(at.first, width, gap, least), second = needed(at.second, width, gap, least);
  return at.vertical == width ? first + gap + second : std::max(first, second);
}

Layout::Parts Layout::parts_of(int split, const Area& area, float gap, Extent least) const {
  const Node& at = node(split);
  Parts parts;
  parts.whole = (at.vertical ? area.width : area.height) - gap;
  parts.needs = needs_within(
      parts.whole, {needed(at.first, at.vertical, gap, least), needed(at.second, at.vertical, gap, least)},
      least.along(at.vertical));
  parts.fit = parts.needs.fit(parts.whole);
  if (!parts.fit) return parts;
  parts.first_length =
      std::clamp(std::round(parts.whole * at.share), std::ceil(parts.needs.first),
                 std::max(std::ceil(parts.needs.first), std::floor(parts.whole - parts.needs.second)));
  parts.first = parts.bar = parts.second = area;
  const float first = parts.first_length, second = parts.whole - first;
  if (at.vertical) {
    parts.first.width = first;
    parts.bar = {area.x + first, area.y, gap, area.height};
    parts.second = {area.x + first + gap, area.y, second, area.height};
  } else {
    parts.first.height = first;
    parts.bar = {area.x, area.y + first, area.width, gap};
    parts.second = {area.x, area.y + first + gap, area.width, second};
  }
  return parts;
}

/// The panels of all leaves below; in front is that of the leaf that was shown last.
void Layout::add_slot(int number, Slot& slot, std::ptrdiff_t& latest) const {
  const Node& at = node(number);
  if (!at.leaf) {
    add_slot(at.first, slot, latest);
    return add_slot(at.second, slot, latest);
  }
  const auto shown = std::find(shown_.begin(), shown_.end(), at.panels[at.front]);
  const std::ptrdiff_t when = shown == shown_.end() ? -1 : shown - shown_.begin();
  if (slot.panels.empty() || when > latest) {
    latest = when;
    slot.leaf = number;
    slot.front = slot.panels.size() + at.front;
  }
  slot.panels.insert(slot.panels.end(), at.panels.begin(), at.panels.end());
}

template <class OnSlot, class OnSplit>
void Layout::walk(int number, const Area& area, float gap, Extent least, const OnSlot& on_slot,
                  const OnSplit& on_split) const {
  if (!node(number).leaf) {
    const Parts parts = parts_of(number, area, gap, least);
    if (parts.fit) {
      on_split(number, parts);
      walk(node(number).first, parts.first, gap, least, on_slot, on_split);
      walk(node(number).second, parts.second, gap, least, on_slot, on_split);
      return;
    }
  }
  Slot slot;
  slot.area = area;
  std::ptrdiff_t latest = -1;
  add_slot(number, slot, latest);
  on_slot(slot);
}

std::vector<Layout::Slot> Layout::slots(const Area& window, float gap, Extent least) const {
  if (nodes_.empty()) return {};
  if (maximised_) return {{leaf_of(*maximised_), window, {*maximised_}, 0}};
  std::vector<Slot> found;
  walk(
      0, window, gap, least, [&](const Slot& slot) { found.push_back(slot); }, [](int, const Parts&) {});
  return found;
}

std::vector<Layout::Splitter> Layout::splitters(const Area& window, float gap, Extent least) const {
  std::vector<Splitter> found;
  if (nodes_.empty() || maximised_) return found;
  walk(
      0, window, gap, least, [](const Slot&) {},
      [&](int number, const Parts& parts) {
        found.push_back({number, parts.bar, node(number).vertical});
      });
  return found;
}

void Layout::drag(int split, float pixels, const Area& window, float gap, Extent least) {
  if (nodes_.empty()) return;
  std::optional<Parts> dragged;
  walk(
      0, window, gap, least, [](const Slot&) {},
      [&](int number, const Parts& parts) {
        if (number == split) dragged = parts;
      });
  if (!dragged || !std::isfinite(pixels) || dragged->whole <= 0) return;
  const float length = std::clamp(dragged->first_length + pixels, dragged->needs.first,
                                  dragged->whole - dragged->needs.second);
  nodes_[split].share = std::clamp(length / dragged->whole, kLeastShare, 1 - kLeastShare);
}

int Layout::leaf_of(PanelKind panel) const {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const std::vector<PanelKind>& panels = nodes_[i].panels;
    if (std::find(panels.begin(), panels.end(), panel) != panels.end()) return static_cast<int>(i);
  }
  return -1;
}

void Layout::show(PanelKind panel) {
  const int at = leaf_of(panel);
  if (at < 0) return;
  Node& leaf = nodes_[at];
  leaf.front = static_cast<std::size_t>(std::find(leaf.panels.begin(), leaf.panels.end(), panel) -
                                        leaf.panels.begin());
  make_latest(panel);
  if (maximised_ != panel) maximised_.reset();
}

void Layout::make_latest(PanelKind panel) {
  std::erase(shown_, panel);
  shown_.push_back(panel);
}

void Layout::move(PanelKind panel, int leaf) {
  const int from = leaf_of(panel);
  if (from < 0 || leaf < 0 || leaf >= static_cast<int>(nodes_.size()) || !node(leaf).leaf) return;
  Node& old = nodes_[from];
  if (from == leaf || old.panels.size() == 1) return;
  const auto at =
      static_cast<std::size_t>(std::find(old.panels.begin(), old.panels.end(), panel) - old.panels.begin());
  old.panels.erase(old.panels.begin() + static_cast<std::ptrdiff_t>(at));
  // The one in front stays in front; where it is the one that goes, its neighbour follows.
  if (old.front > at || old.front == old.panels.size()) --old.front;
  Node& target = nodes_[leaf];
  target.panels.push_back(panel);
  target.front = target.panels.size() - 1;
  make_latest(panel);
}

bool Layout::in_front(PanelKind panel) const {
  if (maximised_) return maximised_ == panel;
  const int at = leaf_of(panel);
  return at >= 0 && node(at).panels[node(at).front] == panel;
}

void Layout::maximise(std::optional<PanelKind> panel) {
  if (panel) show(*panel);
  maximised_ = panel && leaf_of(*panel) >= 0 ? panel : std::nullopt;
}

nlohmann::json Layout::node_to_json(int number) const {
  const Node& at = node(number);
  nlohmann::json json = nlohmann::json::object();
  if (at.leaf) {
    json["panels"] = nlohmann::json::array();
    for (const PanelKind panel : at.panels) json["panels"].push_back(name_of(panel));
    json["front"] = name_of(at.panels[at.front]);
  } else {
    json["bar"] = at.vertical ? "vertical" : "horizontal";
    json["share"] = at.share;
    json["parts"] = {node_to_json(at.first), node_to_json(at.second)};
  }
  return json;
}

nlohmann::json Layout::to_json() const {
  nlohmann::json json = nlohmann::json::object();
  json["maximised"] = maximised_ ? nlohmann::json(name_of(*maximised_)) : nlohmann::json();
  json["root"] = nodes_.empty() ? nlohmann::json() : node_to_json(0);
  json["shown"] = nlohmann::json::array();
  for (const PanelKind panel : shown_) json["shown"].push_back(name_of(panel));
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

std::optional<Layout> Layout::of_json(const nlohmann::json& json) {
  Layout layout;
  if (!json.is_object() || !layout.add_from_json(json.value("root", nlohmann::json()), 0)) return {};
  layout.maximised_ = panel_in(json.value("maximised", nlohmann::json()));
  if (const nlohmann::json shown = json.value("shown", nlohmann::json()); shown.is_array())
    for (const nlohmann::json& name : shown)
      if (const auto panel = panel_in(name); panel && !holds(layout.shown_, *panel))
        layout.shown_.push_back(*panel);
  return layout;
}

Layout Layout::from_json(const nlohmann::json& json) {
  const Layout usual = standard();
  Layout layout = of_json(json).value_or(usual);
  for (const PanelKind panel : kPanels.all()) {
    if (layout.leaf_of(panel) >= 0) continue;
    // With those that it usually stands with, else in the first leaf.
    int at = -1;
    for (const PanelKind companion : usual.node(usual.leaf_of(panel)).panels)
      if (at < 0) at = layout.leaf_of(companion);
    for (std::size_t i = 0; at < 0; ++i)
      if (layout.nodes_[i].leaf) at = static_cast<int>(i);
    layout.nodes_[at].panels.push_back(panel);
  }
  return layout;
}

Layout layout_for(Preset preset) { return Layout::from_json(nlohmann::json::parse(kPresets[preset].layout)); }

std::vector<std::size_t> columns_that_fit(std::span<const float> widths, float room, std::size_t always) {
  std::vector<std::size_t> fitting;
  if (always < widths.size()) room -= widths[always];
  for (std::size_t i = 0; i < widths.size(); ++i) {
    if (i != always && widths[i] > room) continue;
    fitting.push_back(i);
    if (i != always) room -= widths[i];
  }
  return fitting;
}

MatrixSize SheetLayout::size() const {
  if (count == 0) return {};
  const Index across = std::min(columns, count);
  return {rows() * (picture.rows + gap) - gap, across * (picture.columns + gap) - gap};
}

std::optional<SheetLayout::Place> SheetLayout::at(Index row, Index column) const {
  if (row < 0 || column < 0) return std::nullopt;
  const Index height = picture.rows + gap, width = picture.columns + gap;
  const Place place{row / height * columns + column / width, row % height, column % width};
  if (column / width >= columns || place.number >= count || place.row >= picture.rows ||
      place.column >= picture.columns)
    return std::nullopt;
  return place;
}

SheetLayout sheet_layout(Index count, Index multiple, MatrixSize picture, Index gap, double width,
                         double height) {
  SheetLayout best{count, std::max<Index>(std::min(multiple, count), 1), picture, gap};
  const auto scale = [&](const SheetLayout& layout) {
    const MatrixSize size = layout.size();
    return std::min(width / static_cast<double>(std::max<Index>(size.columns, 1)),
                    height / static_cast<double>(std::max<Index>(size.rows, 1)));
  };
  for (Index columns = multiple; columns < count + multiple; columns += multiple) {
    const SheetLayout layout{count, std::min(columns, count), picture, gap};
    if (scale(layout) > scale(best)) best = layout;
  }
  return best;
}

}  // namespace kvreplay::viewer
