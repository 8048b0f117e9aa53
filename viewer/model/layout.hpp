#pragma once

#include "viewer/model/panel_kind.hpp"

#include <nlohmann/json.hpp>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay::viewer {

struct Area {
  float x = 0, y = 0, width = 0, height = 0;
  bool operator==(const Area&) const = default;
  bool contains(float px, float py) const { return px >= x && py >= y && px < x + width && py < y + height; }
};

/// A width and a height.
struct Extent {
  float width = 0, height = 0;
  float along(bool width_wanted) const { return width_wanted ? width : height; }
};

/// How the window is divided: a tree of splits whose leaves hold panels, one of each leaf's in front. Where
/// there is no room for two parts side by side, they are shown as one leaf with the tabs of both.
class Layout {
 public:
  /// Where one leaf goes, or several that share its place.
  struct Slot {
    int leaf = 0;  ///< that of the panel in front
    Area area;
    std::vector<PanelKind> panels;
    std::size_t front = 0;  ///< index into panels
  };
  /// Where one border between two parts can be dragged.
  struct Splitter {
    int split = 0;
    Area area;
    bool vertical = false;  ///< a vertical bar: dragging changes widths
  };

  /// The arrangement of a first start.
  static Layout standard();

  /// The leaves within `window` on whole pixels (of a window and gap that are), with `gap` pixels between
  /// them; only the panel itself where one is maximised. None is smaller than `least`, unless the window is:
  /// leaves that have no room beside each other share one place, the one shown last in front.
  std::vector<Slot> slots(const Area& window, float gap, Extent least) const;
  std::vector<Splitter> splitters(const Area& window, float gap, Extent least) const;
  /// Drags a border by some pixels, as far as the least sizes of both parts allow. Parts within them keep
  /// their shares.
  void drag(int split, float pixels, const Area& window, float gap, Extent least);

  /// Brings a panel to the front of its leaf; where another panel is maximised, that ends.
  void show(PanelKind panel);
  /// Moves a panel to the end of another leaf's tabs, in front. The last panel of a leaf stays where it is.
  void move(PanelKind panel, int leaf);
  /// Whether it is seen where the window has room for all leaves: in front of its own, and no other one
  /// maximised.
  bool in_front(PanelKind panel) const;
  /// Gives a panel the whole window, or ends that (empty).
  void maximise(std::optional<PanelKind> panel);
  std::optional<PanelKind> maximised() const { return maximised_; }

  nlohmann::json to_json() const;
  /// What cannot be understood becomes the standard arrangement; panels that are missing are added.
  static Layout from_json(const nlohmann::json& json);
  bool operator==(const Layout&) const = default;

 private:
  struct Node {
    bool leaf = true;
    bool vertical = false;  ///< the bar between the parts is vertical
    float share = 0.5F;     ///< of the first part
    int first = -1, second = -1;
    std::vector<PanelKind> panels;
    std::size_t front = 0;
    bool operator==(const Node&) const = default;
  };
  struct Parts;
  const Node& node(int number) const { return nodes_[number]; }
  int add_leaf(std::vector<PanelKind> panels, std::size_t front = 0);
  int add_split(bool vertical, float share);
  int leaf_of(PanelKind panel) const;
  void make_latest(PanelKind panel);
  float needed(int number, bool width, float gap, Extent least) const;
  Parts parts_of(int split, const Area& area, float gap, Extent least) const;
  template <class OnSlot, class OnSplit>
  void walk(int number, const Area& area, float gap, Extent least, const OnSlot& on_slot,
            const OnSplit& on_split) const;
  void add_slot(int number, Slot& slot, std::ptrdiff_t& latest) const;
  nlohmann::json node_to_json(int number) const;
  bool add_from_json(const nlohmann::json& json, int depth);

  std::vector<Node>
      nodes_;  // [0] is the root; a split comes before all of its first part, that before its second
  std::vector<PanelKind> shown_;  // those that were brought to the front, the latest last
  std::optional<PanelKind> maximised_;
};

}  // namespace kvreplay::viewer
