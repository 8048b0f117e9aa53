#include "viewer/model/layout.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay::viewer {
namespace {

/// A part is never dragged to nothing, so that it can be found again in a larger window.
constexpr float kLeastShare = 0.02F;

/// What two parts of one axis need: all that they need side by side; where there is no room for that, the
/// larger one, or both, as much as a single leaf.
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

}  // namespace

/// How a split divides its area; lengths are along the axis that is divided.
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
  Layout layout;
  const auto split = [&](bool vertical, float share, auto first, auto second) {
    const int at = layout.add_split(vertical, share);
    const int first_part = first();
    const int second_part = second();
    layout.nodes_[at].first = first_part;
    layout.nodes_[at].second = second_part;
    return at;
  };
  const auto leaf = [&](Place place) {
    return [&layout, place] {
      std::vector<PanelKind> panels;
      for (const PanelFacts& panel : kPanels)
        if (panel.place == place) panels.push_back(panel.id);
      std::stable_sort(panels.begin(), panels.end(), [](PanelKind one, PanelKind other) {
        return facts_of(one).tab < facts_of(other).tab;
      });
      return layout.add_leaf(std::move(panels));
    };
  };
  const auto left = [&] { return split(false, 0.6F, leaf(Place::left), leaf(Place::left_foot)); };
  const auto middle = [&] { return split(false, 0.62F, leaf(Place::middle), leaf(Place::middle_foot)); };
  const auto rest = [&] { return split(true, 0.68F, middle, leaf(Place::right)); };
  split(true, 0.26F, left, rest);
  layout.shown_ = {PanelKind::text};
  return layout;
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

}  // namespace kvreplay::viewer
