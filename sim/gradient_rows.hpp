#pragma once

#include "data/dump.hpp"
#include "sim/row_range.hpp"

#include <optional>
#include <string>

namespace kvreplay {

/// Rows of `measured` on which a loss is computed, for gradients of the rows `of_gradients`: the rows in
/// both, which must have the same end. A row's gradient comes from labels at this row and behind it, so the
/// gradients of the last rows are those of a block of these rows alone. Empty where the ends differ, or where
/// either range is empty.
RowRange loss_rows(RowRange measured, RowRange of_gradients);

/// The rows of a dump's gradients; empty where it has none.
RowRange gradient_rows(const Dump& dump, Tensor gradients);
/// Why no loss can be taken on `measured` rows of a dump, as one clause; nothing where it can.
std::optional<std::string> why_no_loss(const Dump& dump, Tensor gradients, RowRange measured);

}  // namespace kvreplay
