#include "viewer/model/sheet_layout.hpp"

#include <algorithm>

namespace kvreplay::viewer {

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
