#include "analysis/channels/channel_names.hpp"

#include "analysis/options/nearest_name.hpp"
#include "analysis/results/csv.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

namespace kvreplay {
namespace {

/// The number that all of `text` spells, nan where it spells none.
double number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value
                                                                  : std::numeric_limits<double>::quiet_NaN();
}

std::vector<std::string> rule_names() {
  std::vector<std::string> names = kChannelMethods.names();
  for (const ChannelMethodFacts& start : kChannelMethods)
    if (start.has_order) names.push_back(fmt::format("{}+{}", name_of(ChannelMethod::exchange), start.name));
  return names;
}

}  // namespace

ChannelRule parse_channel_rule(const std::string& option, const std::string& text) {
  if (const auto rule = channel_rule_named(text)) return *rule;
  const std::vector<std::string> names = rule_names();
  const std::string near = did_you_mean(text, names);
  throw InputError(fmt::format("{}: unknown method '{}'{}", option, text,
                               near.empty() ? fmt::format("; there are: {}", fmt::join(names, ", ")) : near));
}

void check_ratio(const std::string& option, double ratio) {
  if (!(ratio >= 0 && ratio < 1))
    throw InputError(option, "a pruning ratio from 0 to below 1", shortest(ratio));
}

RuleAndRatio parse_rule_and_ratio(const std::string& option, const std::string& text) {
  const std::size_t colon = text.rfind(':');
  const double ratio =
      colon == std::string::npos ? number("") : number(std::string_view(text).substr(colon + 1));
  if (std::isnan(ratio)) throw InputError(option, "METHOD:RATIO, as in iap:0.5", fmt::format("'{}'", text));
  check_ratio(option, ratio);
  return {parse_channel_rule(option, text.substr(0, colon)), ratio};
}

std::optional<Protection> parse_protection(const std::string& text) {
  if (text == "off") return std::nullopt;
  const std::size_t colon = text.find(':');
  Protection share{-1, -1};
  if (colon != std::string::npos)
    share = {number(std::string_view(text).substr(0, colon)),
             number(std::string_view(text).substr(colon + 1))};
  if (share.least >= 0 && share.least <= share.most && share.most <= 100) return share;
  throw InputError("--protect", "A:B, percent of the channels with 0 <= A <= B <= 100, or off",
                   fmt::format("'{}'", text));
}

}  // namespace kvreplay
