#pragma once

#include "data/dump.hpp"

#include <optional>
#include <string>
#include <vector>

namespace kvreplay::viewer {

struct ChannelPair {
  Index first = 0, second = 0;
  bool operator==(const ChannelPair&) const = default;
};

/// Selection that all panels share.
struct Selection {
  std::size_t run = 0;  ///< number of the open run
  Index layer = 0, kv_head = 0;
  std::optional<Index> query_head;  ///< 0..G-1 of the group; empty: the sum over the group
  std::optional<Index> row;         ///< position of a query
  std::optional<Index> token;       ///< position of a key
  std::optional<ChannelPair> channels;
  std::vector<Index> tokens;  ///< chosen together (lasso), ascending
  bool operator==(const Selection&) const = default;
};

/// "3 tokens chosen, from 5 to 9"; of one token "1 token chosen: 5".
std::string chosen_text(const std::vector<Index>& tokens);

/// The nearest selection that a run of this shape has: layer, heads and channels are brought into range,
/// tokens beyond the prompt and rows without a query are dropped, tokens chosen together are sorted. `run`
/// stays.
Selection within(Selection selection, const DumpShape& shape);

/// The next (or previous) head, through all KV heads of all layers and round again.
Selection next_head(Selection selection, const DumpShape& shape, int step);
/// The next (or previous) layer at this head, and round again.
Selection next_layer(Selection selection, const DumpShape& shape, int step);

}  // namespace kvreplay::viewer
