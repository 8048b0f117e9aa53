#include "viewer/work/what_if_compensation.hpp"

#include "analysis/measure/case_outputs.hpp"
#include "analysis/results/scoped_figures.hpp"
#include "viewer/model/numbers.hpp"

#include <algorithm>
#include <utility>

namespace kvreplay::viewer {
namespace {

/// Positions of the rows that are fitted to.
Index reference_positions(const ReferenceOptions& reference, const DumpShape& shape) {
  Index there = 0;
  switch (reference.kind) {
    case Reference::window:
      there = window_rows(shape.l, shape.first_query(), reference.window).count();
      break;
    case Reference::shifted:
      there = shape.l - shape.first_query();
      break;
    case Reference::repeat:
      there = shape.R_ref;
      break;
  }
  return std::min(there, reference.most);
}

const ErrorSplit* split_on(const WhatIf& what_if, RowSet rows) {
  if (!what_if.compensated || rows == RowSet::none) return nullptr;
  const std::optional<ErrorSplit>& split = rows == RowSet::window   ? what_if.compensated->split_window
                                           : rows == RowSet::future ? what_if.compensated->split_future
                                                                    : what_if.compensated->split_reference;
  return split ? &*split : nullptr;
}

}  // namespace

CompensationPlan what_if_compensation(const WhatIfSettings& settings, const Dump& dump,
                                      const EvictionPlan& evictions, const UserScore* score) {
  CompensationPlan plan = compensation_plan(dump, evict_options_of(settings, score), evictions);
  if (!plan.left_out.empty())
    throw OptionError(option_text("{}: {}", evict_option::compensate, plan.left_out.front().why));
  return plan;
}

Key rows_key(const CompensationPlan& plan) {
  Key key(plan.window.begin, plan.window.end, plan.future.begin, plan.future.end, plan.fits(), plan.merges());
  if (plan.fits()) key = {key, plan.reference.kind, plan.reference.most};
  if (plan.fits() || plan.merges()) key = {key, plan.reference.window};
  return key;
}

std::size_t rows_bytes(const CompensationPlan& plan, const DumpShape& shape) {
  const Index positions = plan.window.count() + plan.future.count() +
                          (plan.fits() ? reference_positions(plan.reference, shape) : 0);
  return static_cast<std::size_t>(shape.group() * positions * shape.l) * sizeof(float) +
         (plan.merges() ? head_group_bytes(shape, shape.d_model > 0, sizeof(double)) : 0);
}

WhatIfRows what_if_rows(std::shared_ptr<const HeadGroup<float>> group, const CompensationPlan& plan,
                        JobControl& job) {
  HeadCompensation<float> of_head(*group, plan, job.workers());
  return {std::move(group), std::move(of_head)};
}

WhatIf what_if_compensated(const EvictionPlan& evictions, const CompensationPlan& plan,
                           const WhatIfRows& rows, const WhatIf& plain, JobControl& job) {
  const HeadGroup<float>& group = *rows.group;
  const Semantics semantics = semantics_of(evictions, evictions.cases.front());
  CompensatedHead head = std::move(rows.of_head.of(plain.kept, plan.cases, semantics, job.workers()).front());
  const CaseOutputs<float> outputs = cache_outputs<float>(
      group, plan.window, plan.future, 1, [&](std::size_t) { return compensated_cache(group, head.held); },
      plan.losses.any(), job.compute());
  WhatIf result = plain;
  result.compensated = {
      plan.cases.front().method,       plain.window, plain.future, head.window, head.future, head.reference,
      rows.of_head.reference_full_sq()};
  const auto on = [&](RowSet set, RowRange range, const OutputChanges<float>& changes) {
    return row_figures(group, set, range, plan.losses, changes, job.workers());
  };
  result.window = on(RowSet::window, plan.window, outputs.window);
  result.future = on(RowSet::future, plan.future, outputs.future);
  result.bytes = compensated_bytes(head.held, group.d(), plan.elements);
  for (const OptionText& note : plan.notes) result.notes.push_back(note.plain());
  return result;
}

std::size_t bytes_of(const WhatIfRows& rows) { return rows.of_head.bytes() + bytes_of(*rows.group); }

double split_figure(const WhatIf& what_if, RowSet rows, double ErrorSplit::*sum) {
  const ErrorSplit* split = split_on(what_if, rows);
  if (split == nullptr) return kNone;
  const double full_sq = rows == RowSet::window   ? what_if.window.full_sq
                         : rows == RowSet::future ? what_if.future.full_sq
                                                  : what_if.compensated->reference_full_sq;
  return relative_error(split->*sum, full_sq);
}

std::optional<ErrorSteps> error_steps(const WhatIf& what_if, RowSet rows) {
  if (split_on(what_if, rows) == nullptr) return std::nullopt;
  const auto figure = [&](double ErrorSplit::*sum) { return split_figure(what_if, rows, sum); };
  ErrorSteps steps{figure(&ErrorSplit::selection), figure(&ErrorSplit::weighted),
                   figure(&ErrorSplit::change_sq), figure(&ErrorSplit::bound), figure(&ErrorSplit::plain)};
  if (rows == RowSet::reference) return steps;
  // The very numbers that stand beside it.
  const bool window = rows == RowSet::window;
  steps.error = (window ? what_if.window : what_if.future).error;
  steps.plain = (window ? what_if.compensated->plain_window : what_if.compensated->plain_future).error;
  return steps;
}

}  // namespace kvreplay::viewer
