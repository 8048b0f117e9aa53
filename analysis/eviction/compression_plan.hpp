#pragma once

#include "analysis/options/option_text.hpp"
#include "data/dump.hpp"
#include "sim/channels/channel_basis.hpp"
#include "sim/compression/compressed_cache.hpp"

#include <optional>
#include <string>
#include <vector>

namespace kvreplay {

struct EvictionOptions;
struct EvictionPlan;
struct Phase;

/// What is done to the tokens that an eviction keeps.
struct Compression {
  std::optional<ChannelRule> channels;
  double ratio = 0;  ///< of the channels
  std::optional<Quantization> quantization;
};

/// Of the options channels and bits; nothing where neither was given. Throws OptionError for other bits, for
/// a method that the dump cannot feed, and for a phase that decodes. `window` are the queries that rank
/// channels.
std::optional<Compression> compression_of(const Dump& dump, const EvictionOptions& options,
                                          const std::vector<Phase>& phases, Rows window);

/// What the plan's compression leaves as it was, or does otherwise than one may think; a line each.
std::vector<OptionText> compression_notes(const EvictionPlan& plan, const DumpShape& shape);

}  // namespace kvreplay
