// What a heatmap's colours mean: its own choice, or that of the views that it is locked with.

#include "viewer/model/session_keys.hpp"
#include "viewer/widgets/heatmap_view.hpp"

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvreplay::viewer {
namespace {

/// Texels that a range is taken from.
constexpr std::size_t kValuesSampled = 1 << 16;

/// Reads a name into an optional, which stays as it is where the name is missing or unknown.
template <class Table>
void read_chosen(Keys& keys, const char* key, std::optional<typename Table::Enum>& into, const Table& table) {
  keys.read_name(key, into, [&](std::string_view name) {
    const auto value = table.named(name);
    return value ? std::make_optional(value) : std::nullopt;
  });
}

}  // namespace

void HeatmapView::choose_scale(const HeatmapContent& content, HeatmapLinks& links) {
  image_.colors = colors_.value_or(content.is_signed ? ColorMap::rdbu : ColorMap::viridis);
  RangeChoice choice = range_chosen_ ? range_ : content.range;
  if (!range_chosen_) choice.symmetric = content.is_signed;
  ScaleKind scale = scale_.value_or(content.scale);
  const auto lock = links.ranges.find(content.unit);
  const bool edited = std::exchange(range_edited_, false);
  const bool held = links.locked && lock != links.ranges.end() && !edited;
  if (held) {
    choice.kind = RangeKind::fixed;
    choice.fixed_low = lock->second.first;
    choice.fixed_high = lock->second.second;
    choice.symmetric = false;
  }
  std::vector<float> visible, selected;
  if (choice.kind != RangeKind::fixed)
    visible =
        visible_values(tiles_, image_.camera, content.size, image_.width, image_.height, kValuesSampled);
  // Percentiles leave an outlier out by themselves.
  if (content.is_signed && !scale_ && scale == ScaleKind::linear && choice.kind != RangeKind::percentiles &&
      has_outlier(visible))
    scale = ScaleKind::symlog;
  nothing_selected_ = false;
  if (choice.kind == RangeKind::selection) {
    std::vector<Index> columns = content.selected_columns;
    if (columns.empty() && content.column) columns.push_back(*content.column);
    nothing_selected_ = columns.empty() && !content.row;
    selected = selected_values(tiles_, image_.camera, content.size, image_.width, image_.height, columns,
                               content.row, kValuesSampled);
  }
  image_.scale = scale_in_range(choice, scale, known_, visible, selected);
  if (links.locked && !held && complete_ && known_.finite > 0)
    links.ranges[content.unit] = {image_.scale.low, image_.scale.high};
}

nlohmann::json HeatmapView::save() const {
  nlohmann::json json;
  if (colors_) json["colors"] = name_of(*colors_);
  if (scale_) json["scale"] = name_of(*scale_);
  json["mark_beyond"] = mark_beyond_;
  if (range_chosen_)
    json["range"] = {{"kind", name_of(range_.kind)},      {"symmetric", range_.symmetric},
                     {"low_percent", range_.low_percent}, {"high_percent", range_.high_percent},
                     {"low", range_.fixed_low},           {"high", range_.fixed_high}};
  return json;
}

void HeatmapView::load(const nlohmann::json& json) {
  Keys keys(json);
  read_chosen(keys, "colors", colors_, kColorMaps);
  read_chosen(keys, "scale", scale_, kScaleKinds);
  keys.read("mark_beyond", mark_beyond_);
  const nlohmann::json* range = keys.at("range");
  if (range == nullptr) return;
  Keys of_range(*range);
  std::optional<RangeKind> kind;
  read_chosen(of_range, "kind", kind, kRangeKinds);
  range_chosen_ = kind.has_value();
  range_.kind = kind.value_or(range_.kind);
  of_range.read("symmetric", range_.symmetric);
  of_range.read("low_percent", range_.low_percent, 0.0, 100.0);
  of_range.read("high_percent", range_.high_percent, 0.0, 100.0);
  constexpr float kMost = std::numeric_limits<float>::max();
  of_range.read("low", range_.fixed_low, -kMost, kMost);
  of_range.read("high", range_.fixed_high, -kMost, kMost);
}

}  // namespace kvreplay::viewer
