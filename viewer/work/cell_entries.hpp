#pragma once

#include "data/dump.hpp"
#include "sim/head_group.hpp"
#include "sim/tokens/entry_map.hpp"
#include "viewer/model/selection.hpp"
#include "viewer/work/desk.hpp"

#include <array>
#include <memory>
#include <optional>
#include <string>

// Single cells of the token map in float64, by the reference.

namespace kvreplay::viewer {

struct Cell {
  Index layer = 0, kv_head = 0;
  std::optional<Index> query_head;  ///< 0..G-1; empty: the sum over the group, for the logit the mean
  Index row = 0, token = 0;         ///< positions
  bool operator==(const Cell&) const = default;
};

/// Why a run of this shape has no such cell, as one clause; nothing where it has.
std::optional<std::string> why_no_cell(const DumpShape& shape, const Cell& cell);

/// A head group to look cells up in.
struct ExactHead {
  std::shared_ptr<const HeadGroup<double>> group;
};
std::size_t bytes_of(const ExactHead& head);

struct CellEntries {
  std::array<double, kEntries.size()> values{};  ///< by Entry; NaN where the token is hidden from the row
  bool hidden = false;
  double operator[](EntryTerm entry) const { return values[static_cast<std::size_t>(entry)]; }
};
/// Every entry of a cell that the group has (why_no_cell). O(entries G T (d + d_v)).
CellEntries cell_entries(const HeadGroup<double>& group, const Cell& cell, JobControl& job);

/// H of two channels: (k_c . k_e) over the prompt's keys without the last `recent`, times the sum over query
/// heads of (q_c . q_e) over the window's queries. O((l + G w)).
double channel_interaction(const HeadGroup<double>& group, ChannelPair channels, Index recent, Index window);

}  // namespace kvreplay::viewer
