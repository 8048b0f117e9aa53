#pragma once

#include "analysis/options/option.hpp"
#include "sim/channels/selection.hpp"
#include "sim/eviction/policy.hpp"

#include <optional>
#include <string>
#include <vector>

namespace kvreplay {

std::vector<ChannelRule> channel_rules_named(const std::vector<std::string>& names);

struct ChannelOptions {
  std::vector<ChannelRule> methods = channel_rules_named({"magnitude", "think", "iap", "exchange", "output"});
  std::vector<double> ratios = {0.4, 0.5, 0.6, 0.7};
  Semantics semantics = Semantics::paper;
  std::optional<Index> recent;  ///< unset: the semantics' own
  Index window = 32;
  std::optional<Protection> protect;
  bool png = false;
  bool operator==(const ChannelOptions&) const = default;
};

/// Binds every option to its field of `options`, which must outlive the result.
BoundOptions bound(ChannelOptions& options);

namespace channel_option {
inline constexpr OptionFacts method{
    "method", "LIST",
    "Methods that choose the channels; each takes protect and recent as in iap[protect=5:15,recent=0], and "
    "several of them as in think[recent=0/32]"},
    ratio{"ratio", "LIST", "Shares of the channels to prune"},
    semantics{
        "semantics", "NAME",
        "Variant of a method: paper (scores from the keys that lose channels); official (ThinK's code: a "
        "selection for every query head, scores from all keys); kvpress (every key loses channels)"},
    recent{"recent", "N", "The last N keys of the prompt stay whole", "32; kvpress 0"},
    window{"window", "N", "Rank by the last N queries of the prompt", "", 1},
    protect{"protect", "A:B", "Never prune channels of outstanding key norm: between A and B percent of them",
            "off"},
    png{"png", "", "Heatmaps of every head as pictures too"};
}  // namespace channel_option

/// "off" is none.
BoundOption bound_protection(const OptionFacts& option, std::optional<Protection>& protection);

/// METHOD:RATIO.
struct RuleAndRatio {
  ChannelRule rule;
  double ratio = 0;
};

template <>
struct OptionValue<Semantics> : NamedValue<kSemantics, Listed::one_of> {};

/// METHOD or exchange+METHOD, with options of its own in brackets; with the nearest names where it is
/// unknown.
template <>
struct OptionValue<ChannelRule> {
  static constexpr bool kAlternatives = true;
  static ChannelRule parse(const OptionFacts& option, const std::string& word);
  static std::string text(const ChannelRule& rule) { return rule.name; }
};

template <>
struct OptionValue<RuleAndRatio> {
  static RuleAndRatio parse(const OptionFacts& option, const std::string& word);
  static std::string text(const RuleAndRatio& both);
};

/// "A:B" in percent; "off" is an empty optional's word.
template <>
struct OptionValue<Protection> {
  static Protection parse(const OptionFacts& option, const std::string& word);
  static std::string text(const Protection& share);
};

/// Throws OptionError, which names `option`, where percentages are reversed or beyond 0 to 100; `word` is how
/// they were given.
void check_protection(const OptionFacts& option, const Protection& share, const std::string& word);
/// Throws OptionError, which names `option`, where it is no pruning ratio in [0, 1).
void check_ratio(const OptionFacts& option, double ratio);

}  // namespace kvreplay
