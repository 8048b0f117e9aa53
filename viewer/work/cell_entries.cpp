#include "viewer/work/cell_entries.hpp"

#include "sim/tokens/token_metrics.hpp"
#include "viewer/work/entry_tiles.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace kvreplay::viewer {

std::optional<std::string> why_no_cell(const DumpShape& shape, const Cell& cell) {
  const auto beyond = [](Index index, Index count) { return index < 0 || index >= count; };
  if (beyond(cell.layer, shape.layers)) return fmt::format("no layer {}", cell.layer);
  if (beyond(cell.kv_head, shape.n_kv)) return fmt::format("no KV head {}", cell.kv_head);
  if (cell.query_head && beyond(*cell.query_head, shape.group()))
    return fmt::format("no query head {}", *cell.query_head);
  if (beyond(cell.token, shape.T)) return fmt::format("no token {}", cell.token);
  if (beyond(cell.row, shape.T)) return fmt::format("no row {}", cell.row);
  if (cell.row < shape.first_query()) return fmt::format("no query at row {}", cell.row);
  return std::nullopt;
}

std::size_t bytes_of(const ExactHead& head) {
  if (!head.group) return sizeof(head);
  const HeadGroup<double>& group = *head.group;
  Index numbers = group.k.size() + group.v.size();
  for (const HeadMatrix<double>& q : group.q) numbers += q.size();
  for (const Matrix<double>& wo : group.wo) numbers += wo.size();
  return sizeof(head) + static_cast<std::size_t>(numbers) * sizeof(double);
}

CellEntries cell_entries(const HeadGroup<double>& group, const Cell& cell, JobControl& job) {
  CellEntries entries;
  entries.hidden = cell.token < group.first_visible(cell.row) || cell.token >= group.end_visible(cell.row);
  if (entries.hidden) {
    entries.values.fill(std::numeric_limits<double>::quiet_NaN());
    return entries;
  }
  for (const EntryTerm entry : kEntries.all()) {
    job.check();
    EntryView view;
    view.layer = cell.layer;
    view.kv_head = cell.kv_head;
    view.query_head = cell.query_head;
    view.shown = entry;
    entries.values[static_cast<std::size_t>(entry)] = entry_exact(group, view, cell.row, cell.token);
  }
  return entries;
}

double channel_interaction(const HeadGroup<double>& group, ChannelPair channels, Index recent, Index window) {
  const Index keys = std::max<Index>(group.l - std::max<Index>(recent, 0), 0);
  const double key_product =
      group.k.col(channels.first).head(keys).dot(group.k.col(channels.second).head(keys));
  const RowRange rows = window_rows(group.l, group.first_query(), window);
  if (rows.count() == 0) return 0;
  double query_product = 0;
  for (const HeadMatrix<double>& q : group.q) {
    const auto seen = q.middleRows(rows.begin - group.first_query(), rows.count());
    query_product += seen.col(channels.first).dot(seen.col(channels.second));
  }
  return key_product * query_product;
}

}  // namespace kvreplay::viewer
