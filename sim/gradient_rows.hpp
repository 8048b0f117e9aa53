#pragma once

#include "data/dump.hpp"
#include "sim/row_range.hpp"

#include <optional>
#include <string>

namespace kvreplay {

/// The rows of `measured` that a loss is taken on, where gradients are of `of_gradients`: those that are in
/// both, which have to end alike. A row's gradient is of labels at it and behind it, so that the gradients of
/// the last rows are those of a block of these alone. Empty where they do not, or where either is.
RowRange loss_rows(RowRange measured, RowRange of_gradients);

/// The rows of a dump's gradients; empty where it has none.
RowRange gradient_rows(const Dump& dump, Tensor gradients);
/// Why no loss can be taken on `measured` rows of a dump, as one clause; nothing where it can.
std::optional<std::string> why_no_loss(const Dump& dump, Tensor gradients, RowRange measured);

}  // namespace kvreplay
