#pragma once

#include "data/facts_table.hpp"
#include "viewer/model/camera.hpp"
#include "viewer/model/panel_kind.hpp"

#include <nlohmann/json.hpp>

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
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

/// Layout of the window: a tree of splits whose leaves hold panels, with one panel of each leaf in front.
/// Without room for two parts side by side, they are shown as one leaf with the tabs of both.
class Layout {
 public:
  /// Area of one leaf, or of several that share one place.
  struct Slot {
    int leaf = 0;  ///< that of the panel in front
    Area area;
    std::vector<PanelKind> panels;
    std::size_t front = 0;  ///< index into panels
  };
  /// Draggable border between two parts.
  struct Splitter {
    int split = 0;
    Area area;
    bool vertical = false;  ///< a vertical bar: dragging changes widths
  };

  /// The arrangement of a first start: that of Preset::loss.
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
  /// True if the panel is visible in a window with room for all leaves: it is in front in its leaf, and no
  /// other panel is maximised.
  bool in_front(PanelKind panel) const;
  /// Gives a panel the whole window, or ends that (empty).
  void maximise(std::optional<PanelKind> panel);
  std::optional<PanelKind> maximised() const { return maximised_; }

  nlohmann::json to_json() const;
  /// Parts that cannot be parsed get the default arrangement; missing panels are added.
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
  static std::optional<Layout> of_json(const nlohmann::json& json);
  bool add_from_json(const nlohmann::json& json, int depth);

  std::vector<Node>
      nodes_;  // [0] is the root; a split comes before all of its first part, that before its second
  std::vector<PanelKind> shown_;  // those that were brought to the front, the latest last
  std::optional<PanelKind> maximised_;
};

/// A question for which panels and settings can be arranged.
enum class Preset { loss, bad_heads, policies, channels, decode };

struct PresetFacts {
  Preset id;
  std::string_view name;
  std::string_view title, hint;    ///< of the action
  PanelKind panel;                 ///< the one that answers, which gets the keyboard
  std::string_view layout;         ///< as a session has it; panels that it leaves out go where they belong
  std::string_view head_map = {};  ///< Settings of the Head map in the format of a session; empty: unchanged.
};
inline constexpr auto kPresets = facts_table<PresetFacts>({
    {Preset::loss, "loss", "Per-head loss", "panels for: which heads lose what", PanelKind::heads,
     R"({"root": {"bar": "vertical", "share": 0.46, "parts": [
         {"panels": ["heads", "inspector"]},
         {"bar": "horizontal", "share": 0.5, "parts": [
           {"panels": ["text", "tokens", "channels"]},
           {"panels": ["what-if", "curves", "scatter", "budgets", "decode", "validation", "recipes"]}]}]},
         "shown": ["heads"]})",
     R"({"controls": {"figure": "", "view": "setting_a"}})"},
    {Preset::bad_heads, "bad-heads", "Find bad heads",
     "panels for: which heads does a score misrank, and why", PanelKind::heads,
     R"({"root": {"bar": "vertical", "share": 0.4, "parts": [
         {"bar": "horizontal", "share": 0.72, "parts": [
           {"panels": ["heads"]}, {"panels": ["inspector"]}]},
         {"bar": "horizontal", "share": 0.5, "parts": [
           {"panels": ["tokens", "channels"], "front": "tokens"},
           {"panels": ["scatter", "curves", "what-if", "budgets", "decode", "validation", "recipes"],
            "front": "scatter"}]}]}})",
     R"({"controls": {"figure": "agreement"}})"},
    {Preset::policies, "policies", "Compare policies", "panels for: what do two policies keep and cost",
     PanelKind::what_if,
     R"({"root": {"bar": "vertical", "share": 0.44, "parts": [
         {"panels": ["what-if"]},
         {"bar": "horizontal", "share": 0.5, "parts": [
           {"panels": ["heads", "tokens", "channels", "inspector"], "front": "heads"},
           {"panels": ["curves", "scatter", "budgets", "decode", "validation", "recipes"], "front": "curves"}]}]}})",
     R"({"controls": {"figure": "", "view": "setting_b-a"}})"},
    {Preset::channels, "channels", "Channels", "panels for: which key channels interact, which can go",
     PanelKind::channels,
     R"({"root": {"bar": "vertical", "share": 0.26, "parts": [
         {"bar": "horizontal", "share": 0.6, "parts": [
           {"panels": ["heads"]}, {"panels": ["inspector"]}]},
         {"panels": ["channels", "tokens", "scatter", "curves", "what-if", "budgets", "decode",
                     "validation", "recipes"], "front": "channels"}]}})"},
    {Preset::decode, "decode", "Decoding", "panels for: how errors grow over decoding steps",
     PanelKind::decode,
     R"({"root": {"bar": "vertical", "share": 0.26, "parts": [
         {"bar": "horizontal", "share": 0.6, "parts": [
           {"panels": ["heads"]}, {"panels": ["inspector"]}]},
         {"bar": "horizontal", "share": 0.62, "parts": [
           {"panels": ["decode", "budgets", "validation", "recipes", "channels"], "front": "decode"},
           {"panels": ["tokens", "curves", "scatter", "what-if"], "front": "tokens"}]}]}})"},
});

/// The panels for the question.
Layout layout_for(Preset preset);

/// Indices of the columns of these widths that fit into `room` next to each other, ascending. Column `always`
/// is included in any case, then each column that fits next to it and the earlier ones.
std::vector<std::size_t> columns_that_fit(std::span<const float> widths, float room, std::size_t always = 0);

/// A contact sheet: small pictures of one size in rows, with gaps between them, as one matrix of texels.
struct SheetLayout {
  Index count = 0;     ///< pictures
  Index columns = 1;   ///< a row
  MatrixSize picture;  ///< texels of each
  Index gap = 0;       ///< texels between them

  Index rows() const { return (count + columns - 1) / columns; }
  /// Texels of the whole sheet.
  MatrixSize size() const;
  /// The texel at a picture's upper left.
  Index first_row(Index number) const { return number / columns * (picture.rows + gap); }
  Index first_column(Index number) const { return number % columns * (picture.columns + gap); }
  /// The picture that the texel is of, by its number, and the texel within it; nothing in a gap.
  struct Place {
    Index number = 0, row = 0, column = 0;
    bool operator==(const Place&) const = default;
  };
  std::optional<Place> at(Index row, Index column) const;
  bool operator==(const SheetLayout&) const = default;
};

/// The number of columns, a multiple of `multiple` where that is below `count`, with which the pictures are
/// largest in a room of that width and height.
SheetLayout sheet_layout(Index count, Index multiple, MatrixSize picture, Index gap, double width,
                         double height);

}  // namespace kvreplay::viewer
