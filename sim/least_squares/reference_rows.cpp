#include "sim/least_squares/reference_rows.hpp"

#include "sim/rotation.hpp"

#include <algorithm>
#include <vector>

namespace kvreplay {
namespace {

constexpr Index kHeldOutOf = 4;

/// At most `most` of `n` positions from `first` on, evenly spaced.
std::vector<Index> spaced(Index first, Index n, Index most) {
  std::vector<Index> found(std::min(n, most));
  for (Index r = 0; r < std::ssize(found); ++r) found[r] = first + r * n / std::ssize(found);
  return found;
}

template <class T>
QueryRows<T> some_of(const QueryRows<T>& rows, const std::vector<Index>& which) {
  QueryRows<T> found{rows.q(which, Eigen::all), {}, {}};
  for (const Index r : which) {
    found.head.push_back(rows.head[r]);
    found.visible.push_back(rows.visible[r]);
  }
  return found;
}

template <class T>
QueryRows<T> of_second_reading(const HeadGroup<T>& group, Index most) {
  const std::vector<Index> at = spaced(0, group.R_ref(), most);
  QueryRows<T> rows{Matrix<T>(group.G() * std::ssize(at), group.d()), {}, {}};
  for (Index g = 0; g < group.G(); ++g)
    for (const Index r : at) {
      rows.q.row(std::ssize(rows.head)) = group.q_ref[g].row(r);
      rows.head.push_back(g);
      rows.visible.push_back(group.repeat_visible(r));
    }
  return rows;
}

}  // namespace

std::optional<std::string> why_no_reference(const Dump& dump, Reference kind) {
  const DumpShape& shape = dump.shape();
  switch (kind) {
    case Reference::window:
    case Reference::shifted:
      if (shape.first_query() >= shape.l) return "the dump holds no query of the prompt";
      if (kind == Reference::shifted && !dump.rope(0))
        return dump.rope_note().empty() ? "it undoes a rotation" : dump.rope_note();
      return std::nullopt;
    case Reference::repeat:
      return why_no_second_reading(dump);
  }
  return std::nullopt;
}

template <class T>
QueryRows<T> reference_queries(const HeadGroup<T>& group, const ReferenceOptions& options) {
  if (options.kind == Reference::repeat) return of_second_reading(group, options.most);
  const Index l = group.l, first = group.first_query();
  const bool shifted = options.kind == Reference::shifted;
  const RowRange of_window = window_rows(l, first, options.window);
  const std::vector<Index> at = shifted ? spaced(first, l - first, options.most)
                                        : spaced(of_window.begin, of_window.count(), options.most);
  QueryRows<T> rows{Matrix<T>(group.G() * std::ssize(at), group.d()), {}, {}};
  for (Index g = 0; g < group.G(); ++g)
    for (const Index i : at) {
      const Index row = std::ssize(rows.head);
      rows.q.row(row) = group.q[g].row(i - first);
      rows.head.push_back(g);
      if (!shifted) {
        // Kept tokens cannot stand in for positions that left the sliding window.
        rows.visible.push_back({std::min(std::max(group.first_visible(i), group.first_held()), l),
                                std::min(group.end_visible(i), l)});
        continue;
      }
      const Index to = l + i % kShiftedPositions;
      rotate_by(*group.rope, to - i, rows.q.row(row).data());
      const Index seen = group.rule.sliding_window.value_or(to + 1);
      rows.visible.push_back({std::min(std::max<Index>(to + 1 - seen, 0), l), l});
    }
  return rows;
}

template <class T>
ReferenceRows<T> reference_rows(const HeadGroup<T>& group, const ReferenceOptions& options,
                                Workers& workers) {
  const QueryRows<T> all = reference_queries(group, options);
  const Index positions = all.count() / group.G();
  std::vector<Index> fitted, held_out;
  for (Index r = 0; r < all.count(); ++r)
    (r % positions % kHeldOutOf == kHeldOutOf - 1 ? held_out : fitted).push_back(r);
  return {row_logits(group, some_of(all, fitted), workers),
          row_logits(group, some_of(all, held_out), workers)};
}

template decltype(reference_queries<float>) reference_queries<float>;
template decltype(reference_queries<double>) reference_queries<double>;
template decltype(reference_rows<float>) reference_rows<float>;
template decltype(reference_rows<double>) reference_rows<double>;

}  // namespace kvreplay
