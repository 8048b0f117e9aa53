#include "analysis/measure/measured_columns.hpp"

#include "sim/gradient_rows.hpp"
#include "sim/loss/change_loss.hpp"

#include <fmt/format.h>

namespace kvreplay {

LossRows LossRows::of(const Dump& dump, RowRange window, RowRange future) {
  return {loss_rows(window, gradient_rows(dump, Tensor::g_window)),
          loss_rows(future, gradient_rows(dump, Tensor::g_future)),
          loss_rows(future, gradient_rows(dump, Tensor::g_nll)), dump.shape().S};
}

std::vector<LeftOut> losses_left_out(const Dump& dump, RowRange window, RowRange future) {
  const std::string sampled = fmt::format("{}, {}, {}, {}, {}", kLossRow.name, kLossHead.name,
                                          kLossLayer.name, kLossStep.name, kLossJoint.name);
  std::vector<LeftOut> left_out;
  const auto note = [&](const std::string& what, Tensor gradients, RowRange measured) {
    if (measured.count() == 0) return;  // said of all figures on such rows
    if (const auto why = why_no_loss(dump, gradients, measured)) left_out.push_back({what, *why});
  };
  const bool none = dump.shape().R_F == 0 && dump.shape().R_W == 0;
  if (none) {
    note(fmt::format("{}, {}", sampled, kDnll.name), Tensor::g_future, future.count() > 0 ? future : window);
    return left_out;
  }
  note(sampled + " on window rows", Tensor::g_window, window);
  note(sampled + " on future rows", Tensor::g_future, future);
  note(std::string(kDnll.name), Tensor::g_nll, future);
  return left_out;
}

std::vector<std::string> loss_notes(const Dump& dump, RowRange window, RowRange future) {
  const LossRows rows = LossRows::of(dump, window, future);
  std::vector<std::string> notes;
  const auto note = [&](RowSet set, RowRange measured, RowRange found) {
    if (found.count() > 0 && found.count() < measured.count())
      notes.push_back(
          fmt::format("losses on {} rows are of {} of the {} measured, those that the dump has gradients of",
                      name_of(set), found.count(), measured.count()));
  };
  note(RowSet::window, window, rows.window);
  note(RowSet::future, future, rows.future);
  return notes;
}

std::optional<double> predicted_loss(const ScopedFigures& figures, const LossColumns& columns,
                                     std::size_t which, Scope scope, std::string_view figure, RowSet rows) {
  const auto per_row = [&](double nats, RowRange of) { return nats / static_cast<double>(of.count()); };
  const LossRows& there = columns.rows();
  if (figure == kDnll.name) {
    if (rows != RowSet::future || there.nll.count() == 0) return std::nullopt;
    return per_row(figures.sum(scope, columns.nll(which)), there.nll);
  }
  const RowRange on = there.on(rows);
  if ((rows != RowSet::window && rows != RowSet::future) || on.count() == 0) return std::nullopt;
  if (figure == kLossRow.name) return per_row(figures.sum(scope, columns.row(which, rows)), on);
  if (figure == kLossHead.name) return per_row(figures.sum(scope, columns.head(which, rows)), on);
  double squares = 0;
  const auto add = [&](double sum) { squares += sum * sum; };
  const auto add_all_of = [&](Scope together) {
    for (Index s = 0; s < there.samples; ++s) add(figures.sum(together, columns.samples(which, rows) + s));
  };
  for (const FigureFacts* facts : {&kLossLayer, &kLossStep})  // no heads' sums
    if (figure == facts->name && !facts->levels.has(level_of(scope))) return std::nullopt;
  if (figure == kLossStep.name && scope.layer)
    return per_row(figures.sum({scope.layer, 0}, columns.step(which, rows)), on);
  if (figure == kLossLayer.name)
    for (const Index layer : figures.layers_in(scope)) add_all_of({layer, std::nullopt});
  else if (figure == kLossJoint.name)
    add_all_of(scope);
  else if (figure == kLossStep.name)
    for (const double sum : figures.of_layers(columns.steps(which, rows), there.samples * on.count()))
      add(sum);
  else
    return std::nullopt;
  return per_row(squares / (2 * static_cast<double>(there.samples)), on);
}

MeasureColumns MeasureColumns::alone(std::size_t cases, RowSet rows, const LossRows& losses) {
  OnRows columns{0, 1, {}, {}};
  for (Index c = 0; c < static_cast<Index>(cases); ++c) {
    columns.change.push_back(2 + 2 * c);
    columns.layer_change.push_back(3 + 2 * c);
  }
  MeasureColumns all;
  (rows == RowSet::window ? all.window : all.future) = std::move(columns);
  all.losses = LossColumns(losses, 2 + 2 * static_cast<Index>(cases), cases);
  return all;
}

}  // namespace kvreplay
