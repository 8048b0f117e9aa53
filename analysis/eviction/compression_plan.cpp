#include "analysis/eviction/compression_plan.hpp"

#include "analysis/channels/channel_plan.hpp"
#include "analysis/eviction/eviction_plan.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay {

std::optional<Compression> compression_of(const Dump& dump, const EvictionOptions& options,
                                          const std::vector<Phase>& phases, Rows window) {
  if (!options.channels && !options.bits) return std::nullopt;
  Compression compression;
  if (options.channels) {
    const auto& [rule, ratio] = *options.channels;
    compression.channels = rule;
    compression.ratio = ratio;
    if (window.count() == 0)
      throw OptionError(option_text("{}: channels are ranked by queries of the prompt, and the dump has none",
                                    evict_option::channels));
    if (const auto why = why_no_rope_pairs(dump); rule.needs_rope() && why)
      throw OptionError(option_text("{}: {} is unavailable: {}", evict_option::channels, rule.name, *why));
  }
  if (options.bits) {
    if (*options.bits != 2 && *options.bits != 4 && *options.bits != 8)
      throw OptionError(evict_option::bits, "2, 4 or 8", fmt::format("{}", *options.bits));
    compression.quantization = Quantization{*options.bits, options.group, options.residual};
  }
  for (const Phase& phase : phases)
    if (phase.decodes())
      throw OptionError(option_text("{} and {}", evict_option::channels, evict_option::bits),
                        "phases that end with the prompt (prefill, blockwise:N)", phase.name());
  return compression;
}

std::vector<OptionText> compression_notes(const EvictionPlan& plan, const DumpShape& shape) {
  const auto& [channels, ratio, quantization] = *plan.compression;
  std::vector<std::string> whole, exact, keys;  // numbers of tokens kept
  std::vector<OptionText> notes;
  const auto add = [](std::vector<std::string>& to, Index kept) {
    const std::string text = fmt::format("{}", kept);
    if (std::find(to.begin(), to.end(), text) == to.end()) to.push_back(text);
  };
  for (const EvictionCase& which : plan.cases) {
    if (!which.kept || *which.kept == 0) continue;
    if (channels && *which.kept <= default_recent(semantics_of(plan, which))) add(whole, *which.kept);
    if (quantization && quantized_values(*which.kept, *quantization) == 0)
      add(exact, *which.kept);
    else if (quantization && quantized_keys(*which.kept, *quantization) == 0)
      add(keys, *which.kept);
  }
  const auto note = [&](const std::vector<std::string>& kept, const OptionText& what) {
    if (!kept.empty()) notes.push_back(option_text("with {} tokens kept {}", fmt::join(kept, ", "), what));
  };
  note(whole, fmt::format("no key loses channels: the last {} stay whole", default_recent(Semantics::paper)));
  if (quantization) {
    note(exact, option_text("nothing is quantized: the last {} stay as they are ({})", quantization->residual,
                            evict_option::residual));
    note(keys, option_text("no key is quantized: they do not fill a group of {} ({})", quantization->group,
                           evict_option::group));
  }
  const auto official = [&](const EvictionCase& which) {
    return semantics_of(plan, which) == Semantics::official;
  };
  if (channels && shape.group() > 1 && !plan.per_query_head &&
      std::any_of(plan.cases.begin(), plan.cases.end(), official))
    notes.push_back(
        option_text("official: channels are chosen for every KV head; ThinK's code repeats the cache for "
                    "each query head ({})",
                    evict_option::per_query_head));
  return notes;
}

}  // namespace kvreplay
