#include "sim/gradient_rows.hpp"

#include "sim/head_group.hpp"

#include <algorithm>

namespace kvreplay {

RowRange loss_rows(RowRange measured, RowRange of_gradients) {
  if (measured.count() == 0 || of_gradients.count() == 0 || measured.end != of_gradients.end) return {};
  return {std::max(measured.begin, of_gradients.begin), measured.end};
}

RowRange gradient_rows(const Dump& dump, Tensor gradients) {
  if (!dump.has(gradients)) return {};
  const DumpShape& shape = dump.shape();
  const Index first = shape.first_row(gradients);
  return {first, first + (gradients == Tensor::g_window ? shape.R_W : shape.R_F)};
}

std::optional<std::string> why_no_loss(const Dump& dump, Tensor gradients, RowRange measured) {
  const DumpShape& shape = dump.shape();
  if (shape.R_F == 0 && shape.R_W == 0) return "it needs gradients of the outputs, and the dump has none";
  const std::string file = std::string(name_of(gradients)) + ".npy";
  if (!dump.has(gradients)) return "it needs the gradients " + file + ", and the dump has none";
  const RowRange there = gradient_rows(dump, gradients);
  if (loss_rows(measured, there).count() > 0) return std::nullopt;
  return "it needs gradients of rows that are measured, and " + file + " has those of positions " +
         std::to_string(there.begin) + "-" + std::to_string(there.end - 1);
}

}  // namespace kvreplay
