#pragma once

#include "analysis/results/result_reader.hpp"
#include "viewer/work/channel_view.hpp"

#include <optional>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// What `kvreplay channels` left of one head's channels. Key norms, protected channels and the split of H
/// into rows are not in a result folder: these are empty.
struct ChannelRecord {
  ChannelHead head;
  ChannelOutputs outputs;                 ///< no parts where no method needed it
  std::vector<ChannelPrunings> prunings;  ///< by ratio, ascending; squared sums of outputs are nan
  std::string semantics;
};

/// Why a run has nothing of a layer's channels, as one clause; nothing where it has.
std::optional<std::string> why_no_channel_results(const ResultReader& results, Index layer);
/// Throws InputError where it has not, or a file is not what it should be.
ChannelRecord read_channels(const ResultReader& results, Index layer, Index kv_head);
std::size_t bytes_of(const ChannelRecord& record);

}  // namespace kvreplay::viewer
