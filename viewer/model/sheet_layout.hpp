#pragma once

#include "viewer/model/camera.hpp"

#include <optional>

namespace kvreplay::viewer {

/// A contact sheet: small pictures of one size in rows, with gaps between them, as one matrix of texels.
struct SheetLayout {
  Index count = 0;     ///< pictures
  Index columns = 1;   ///< a row
  MatrixSize picture;  ///< texels of each
  Index gap = 0;       ///< texels between them

  Index rows() const { return (count + columns - 1) / columns; }
  /// Of the whole sheet.
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
