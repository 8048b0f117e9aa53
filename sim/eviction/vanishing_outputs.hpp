#pragma once

#include "sim/eviction/kept_outputs.hpp"
#include "sim/head_group.hpp"
#include "sim/schedule.hpp"

#include <limits>
#include <span>
#include <utility>

// Outputs that are next to nothing beside the values that they are made of, as where a sink of value 0 holds
// nearly all of every row. Taken about the values' mean, as the fast code takes them, they are a difference
// of numbers of that mean's size and drown in its rounding; taken from the values as they are, nothing
// cancels.

namespace kvreplay {

/// Whether the outputs of `rows`, whose squared norms add up to full_sq, are so small beside the centre that
/// they were taken about that about half of T's digits are lost.
template <class T>
bool vanishing(const HeadGroup<T>& group, RowRange rows, const Vector<T>& centre, double full_sq) {
  constexpr double kShare = sizeof(T) == 4 ? 1e-6 : 1e-12;  // of squares
  const double centre_sq = centre.template cast<double>().squaredNorm();
  return full_sq <= kShare * static_cast<double>(rows.count() * group.G()) * centre_sq;
}

/// A sum of squares of changes whose square may lie below float64's range: a change is never taken for none.
inline double at_least_some(double change_sq) {
  return change_sq > 0 ? change_sq : std::numeric_limits<double>::denorm_min();
}

/// The same vectors in T's panels, of `rows` rows.
template <class T>
PanelRows<T> in_panels_of(const PanelRows<double>& heads, Index rows, Index d_v) {
  PanelRows<T> panels;
  for (const std::vector<double>& head : heads) {
    std::vector<T>& to = panels.emplace_back(panels_of<T>(rows) * d_v * kPanelWidth<T>);
    for (Index r = 0; r < rows; ++r)
      for (Index c = 0; c < d_v; ++c)
        to[panel_entry<T>(c, r, d_v)] = static_cast<T>(head[panel_entry<double>(c, r, d_v)]);
  }
  return panels;
}

/// output_changes() in float64 from the values as they are: right to about 1e-14 of the outputs, however
/// small they are. Where the outputs' squares are below float64's range, every change but that of a set that
/// keeps everything is above 0.
template <class T>
OutputChanges<T> vanishing_output_changes(const HeadGroup<T>& group, RowRange rows,
                                          std::span<const KeptSet> sets, bool with_vectors, Workers& workers);

/// What a twin of output_changes() found about `centre`, put right where it vanishes.
template <class T>
OutputChanges<T> settled(OutputChanges<T>&& found, const Vector<T>& centre, const HeadGroup<T>& group,
                         RowRange rows, std::span<const KeptSet> sets, bool with_vectors, Workers& workers) {
  if (!vanishing(group, rows, centre, found.full_sq)) return std::move(found);
  return vanishing_output_changes(group, rows, sets, with_vectors, workers);
}

}  // namespace kvreplay
