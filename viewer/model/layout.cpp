#include "viewer/model/layout.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay::viewer {
namespace {

/// A part is never dragged to nothing, so that it can be found again in a larger window.
constexpr float kLeastShare = 0.02F;

/// A length in whole pixels for the first of two parts that share `whole`; each gets what it needs, or, where
/// that is too much, in proportion to its needs.
float first_length(float whole, float share, float first_needs, float second_needs) {
  const float needs = first_needs + second_needs;
  if (needs > whole) return needs > 0 ? std::floor(std::max(whole, 0.0F) * (first_needs / needs)) : 0.0F;
  return std::clamp(std::round(whole * share), first_needs, whole - second_needs);
}

}  // namespace

/// How a split divides its area; lengths are along the axis that is divided.
struct Layout::Parts {
  float whole = 0, first_needs = 0, second_needs = 0, first_length = 0;
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
  return layout;
}

float Layout::needed(int number, bool width, float gap, float least) const {
  const Node& at = node(number);
  if (at.leaf) return least;
  const float first = needed(at.first, width, gap, least), second = needed(at.second, width, gap, least);
  return at.vertical == width ? first + gap + second : std::max(first, second);
}

Layout::Parts Layout::parts_of(int split, const Area& area, float gap, float least) const {
  const Node& at = node(split);
  Parts parts;
  parts.whole = std::max((at.vertical ? area.width : area.height) - gap, 0.0F);
  parts.first_needs = needed(at.first, at.vertical, gap, least);
  parts.second_needs = needed(at.second, at.vertical, gap, least);
  parts.first_length = first_length(parts.whole, at.share, parts.first_needs, parts.second_needs);
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

template <class OnLeaf, class OnSplit>
void Layout::walk(int number, const Area& area, float gap, float least, const OnLeaf& on_leaf,
                  const OnSplit& on_split) const {
  if (node(number).leaf) {
    on_leaf(number, area);
    return;
  }
  const Parts parts = parts_of(number, area, gap, least);
  on_split(number, parts);
  walk(node(number).first, parts.first, gap, least, on_leaf, on_split);
  walk(node(number).second, parts.second, gap, least, on_leaf, on_split);
}

std::vector<Layout::Slot> Layout::slots(const Area& window, float gap, float least) const {
  if (nodes_.empty()) return {};
  if (maximised_) return {{leaf_of(*maximised_), window, {*maximised_}, 0}};
  std::vector<Slot> found;
  walk(
      0, window, gap, least,
      [&](int number, const Area& area) {
        found.push_back({number, area, node(number).panels, node(number).front});
      },
      [](int, const Parts&) {});
  return found;
}

std::vector<Layout::Splitter> Layout::splitters(const Area& window, float gap, float least) const {
  std::vector<Splitter> found;
  if (nodes_.empty() || maximised_) return found;
  walk(
      0, window, gap, least, [](int, const Area&) {},
      [&](int number, const Parts& parts) {
        found.push_back({number, parts.bar, node(number).vertical});
      });
  return found;
}

void Layout::drag(int split, float pixels, const Area& window, float gap, float least) {
  if (nodes_.empty()) return;
  std::optional<Parts> dragged;
  walk(
      0, window, gap, least, [](int, const Area&) {},
      [&](int number, const Parts& parts) {
        if (number == split) dragged = parts;
      });
  if (!dragged || !std::isfinite(pixels) || dragged->first_needs + dragged->second_needs > dragged->whole ||
      dragged->whole <= 0)
    return;
  const float length = std::clamp(dragged->first_length + pixels, dragged->first_needs,
                                  dragged->whole - dragged->second_needs);
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
  if (maximised_ != panel) maximised_.reset();
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
