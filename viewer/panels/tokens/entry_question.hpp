#pragma once

#include "viewer/panels/panel.hpp"
#include "viewer/work/row_values.hpp"

#include <memory>
#include <string>

namespace kvreplay::viewer {

/// Tiles of single rows and tokens of the selected head. Softmax states of rows are shared by all tiles.
class EntryQuestions {
 public:
  EntryQuestions();

  /// What the tiles of a view depend on: the beginning of their keys. Where AppState::subtracted() is a run,
  /// all of this is of the selected run less that one.
  static Key key_of(PanelContext& context, const EntryView& view);
  /// The tile; while it takes long, one made from a part of its rows (`pending` is then set).
  Answer<Tile> tile(PanelContext& context, const EntryView& view, const TileKey& key) const;
  /// One number of every step-th row, kRowValues of them: row_values().
  Answer<RowValues> rows(PanelContext& context, const EntryView& view, Index block, Index step) const;

 private:
  std::shared_ptr<RowCache> rows_;
};

}  // namespace kvreplay::viewer
