#include "viewer/work/row_values.hpp"

#include "viewer/model/numbers.hpp"
#include "viewer/work/view_cells.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay::viewer {
namespace {

HeadRows rows_of(const EntryMap<float>& map, RowRange heads, Index block, Index step, RowCache& cache,
                 JobControl& job) {
  const HeadGroup<float>& group = map.group();
  const Index begin = group.first_query() + block * kRowValues * step;
  const RowRange positions{begin, std::min(begin + kRowValues * step, group.T_all())};
  HeadRows rows;
  for (Index g = heads.begin; g < heads.end; ++g)
    rows.push_back(
        step == 1 ? cache.get(map, g, block, job)
                  : std::make_shared<const EntryRows<float>>(map.rows(g, positions, job.workers(), step)));
  return rows;
}

double with(double so_far, float cell, bool adds_up) {
  const auto value = static_cast<double>(cell);
  if (std::isnan(value)) return so_far;
  if (std::isnan(so_far)) return value;
  if (adds_up) return so_far + value;
  return std::abs(value) > std::abs(so_far) ? value : so_far;
}

}  // namespace

bool row_adds_up(const EntryView& view) {
  return view.against == EntryView::Against::nothing && view.shown != EntryTerm::logit &&
         view.shown != EntryTerm::attn;
}

std::size_t bytes_of(const RowValues& rows) { return rows.values.size() * sizeof(float); }

RowValues row_values(const EntryMap<float>& map, const EntryView& view, Index block, Index step,
                     RowCache& cache, JobControl& job, const EntryMap<float>* minus) {
  const HeadGroup<float>& group = map.group();
  const bool adds_up = minus == nullptr && row_adds_up(view);
  RowValues found;
  if (block * kRowValues * step >= group.T_q()) return found;
  const RowRange heads = heads_of(view, group.G());
  RowsOfMaps rows{rows_of(map, heads, block, step, cache, job)};
  if (minus != nullptr) rows.minus = rows_of(*minus, heads, block, step, cache, job);
  const EntryRows<float>& first = *rows.shown.front();
  ViewCells cells_of(map, view, job, minus);
  std::vector<double> values(first.count(), kNaN);
  for (Index begin = 0; begin < first.count(); begin += ViewCells::rows_at_once()) {
    const Index end = std::min(begin + ViewCells::rows_at_once(), first.count());
    const RowRange seen{group.first_visible(first.position(begin)),
                        group.end_visible(first.position(end - 1))};
    for (Index from = seen.begin; from < seen.end; from += cells_of.tokens_at_once()) {
      const RowRange tokens{from, std::min(from + cells_of.tokens_at_once(), seen.end)};
      const std::vector<float>& cells = cells_of.cells(rows, begin, end, tokens);
      auto cell = cells.begin();
      for (Index r = begin; r < end; ++r)
        for (Index p = 0; p < tokens.count(); ++p, ++cell) {
          double& value = values[r];
          value = with(value, *cell, adds_up);
        }
    }
    job.progress(static_cast<double>(end) / static_cast<double>(first.count()));
  }
  found.values.assign(values.begin(), values.end());
  return found;
}

}  // namespace kvreplay::viewer
