#include "analysis/channels/channel_plan.hpp"

#include "analysis/results/csv.hpp"
#include "analysis/results/map_name.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay {

bool ChannelPlan::needs_outputs() const {
  return std::any_of(rules.begin(), rules.end(),
                     [](const ChannelRule& rule) { return rule.needs_outputs(); });
}

std::optional<std::size_t> ChannelPlan::think_at(std::size_t which) const {
  std::optional<std::size_t> found;
  for (std::size_t c = 0; c < cases.size(); ++c) {
    const ChannelRule& rule = rules[cases[c].rule];
    if (rule.method != ChannelMethod::think || cases[c].ratio != cases[which].ratio ||
        setting_of(cases[c]).recent != setting_of(cases[which]).recent)
      continue;
    if (!rule.protection) return c;
    if (!found) found = c;
  }
  return found;
}

std::optional<std::string> why_no_rope_pairs(const Dump& dump) {
  for (Index layer = 0; layer < dump.shape().layers; ++layer)
    if (!dump.rope(layer)) return dump.rope_note();
  return std::nullopt;
}

std::optional<OptionText> why_no_channels(const Dump& dump, const ChannelOptions& options) {
  const DumpShape& shape = dump.shape();
  if (window_rows(shape.l, shape.first_query(), options.window).count() == 0)
    return OptionText("channels are ranked by queries of the prompt, and the dump has none");
  const Index recent = options.recent.value_or(default_recent(options.semantics));
  if (recent >= shape.l)
    return option_text("the last {} keys stay whole, and the prompt has {} ({})", recent, shape.l,
                       channel_option::recent);
  return std::nullopt;
}

ChannelPlan channel_plan(const Dump& dump, const ChannelOptions& options) {
  const DumpShape& shape = dump.shape();
  ChannelPlan plan;
  plan.setting.semantics = options.semantics;
  plan.setting.recent = options.recent.value_or(default_recent(plan.setting.semantics));
  plan.setting.window = options.window;
  plan.setting.protection = options.protect;
  plan.png = options.png;
  if (const auto& share = options.protect)
    check_protection(channel_option::protect, *share, OptionValue<Protection>::text(*share));
  if (options.recent && *options.recent >= shape.l)
    throw OptionError(channel_option::recent,
                      fmt::format("0 to {} of the prompt's {} keys", shape.l - 1, shape.l),
                      fmt::format("{}", *options.recent));
  if (const auto why = why_no_channels(dump, options))
    throw OptionError(option_text("{}: {}", dump.folder().string(), *why));

  plan.window = window_rows(shape.l, shape.first_query(), options.window);
  plan.future = future_rows(shape.l, shape.T, shape.first_query());
  if (plan.window.count() < options.window)
    plan.notes.push_back(
        fmt::format("window {} clipped to {}: the dump holds the queries of {} prompt positions",
                    options.window, plan.window.count(), plan.window.count()));

  for (const ChannelRule& rule : options.methods) {
    if (rule.needs_rope())
      if (const auto why = why_no_rope_pairs(dump))
        throw OptionError(option_text("{}: {} is unavailable: {}", channel_option::method, rule.name, *why));
    if (rule.recent && *rule.recent >= shape.l)
      throw OptionError(
          option_text("{}: '{}': {}", channel_option::method, rule.name, channel_option::recent),
          fmt::format("0 to {} of the prompt's {} keys", shape.l - 1, shape.l),
          fmt::format("{}", *rule.recent));
    const auto same = [&](const ChannelRule& other) { return other.name == rule.name; };
    if (std::none_of(plan.rules.begin(), plan.rules.end(), same)) plan.rules.push_back(rule);
  }
  if (plan.rules.empty()) throw OptionError(channel_option::method, "names of methods", "none");
  for (const double ratio : options.ratios) {
    check_ratio(channel_option::ratio, ratio);
    if (std::find(plan.ratios.begin(), plan.ratios.end(), ratio) == plan.ratios.end())
      plan.ratios.push_back(ratio == 0 ? 0.0 : ratio);
  }
  if (plan.ratios.empty()) throw OptionError(channel_option::ratio, "pruning ratios", "none");
  for (std::size_t rule = 0; rule < plan.rules.size(); ++rule)
    for (const double ratio : plan.ratios)
      plan.cases.push_back({rule, ratio, shortest(ratio),
                            pruned_channels(ratio, shape.d, plan.setting.semantics),
                            fmt::format("{}-{}", file_word(plan.rules[rule].name), shortest(ratio))});

  plan.notes.push_back(
      "errors do not feed back: queries, keys and values are those of the uncompressed model");
  if (plan.future.count() == 0)
    plan.left_out.push_back(
        {"the metrics on future rows", "they need decoding steps with queries, and the dump has none"});
  if (!dump.has(Tensor::wo))
    plan.left_out.push_back({"layer_output_error", "it needs the output projection wo.npy"});
  if (const auto why = why_no_rope_pairs(dump)) plan.left_out.push_back({"rope_pair_share", *why});
  plan.losses = LossRows::of(dump, plan.window, plan.future);
  for (LeftOut& losses : losses_left_out(dump, plan.window, plan.future))
    plan.left_out.push_back(std::move(losses));
  for (const std::string& note : loss_notes(dump, plan.window, plan.future)) plan.notes.push_back(note);
  return plan;
}

}  // namespace kvreplay
