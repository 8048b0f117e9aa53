#include "analysis/channels/channel_options.hpp"

#include "analysis/results/csv.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>

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

constexpr const char* kOff = "off";

}  // namespace

BoundOption bound_protection(const OptionFacts& option, std::optional<Protection>& protection) {
  BoundOption share = bind_option(option, protection);
  share.read = [&option, &protection](const std::vector<std::string>& words) {
    protection = same_name(words.front(), kOff)
                     ? std::nullopt
                     : std::optional(OptionValue<Protection>::parse(option, words.front()));
  };
  share.read_json = [&protection, read = share.read](const Json& json, const std::string& where) {
    if (json.is_array() && json.size() == 2)
      protection = {OptionValue<double>::from_json(json[0], where),
                    OptionValue<double>::from_json(json[1], where)};
    else
      read({option_detail::word_of(json, where)});
  };
  share.write = [&protection] { return protection ? Json{protection->least, protection->most} : Json(); };
  return share;
}

BoundOptions bound(ChannelOptions& options) {
  using namespace channel_option;
  return {bind_option(method, options.methods)
              .keyed("methods")
              .saying(fmt::format(": {}; exchange+METHOD: from another than iap",
                                  fmt::join(kChannelMethods.names(), ", "))),
          bind_option(ratio, options.ratios).keyed("ratios"),
          bind_option(semantics, options.semantics),
          bind_option(recent, options.recent),
          bind_option(window, options.window),
          bound_protection(protect, options.protect),
          bind_option(png, options.png)};
}

std::vector<ChannelRule> channel_rules_named(const std::vector<std::string>& names) {
  std::vector<ChannelRule> rules;
  for (const std::string& name : names)
    rules.push_back(OptionValue<ChannelRule>::parse(channel_option::method, name));
  return rules;
}

ChannelRule OptionValue<ChannelRule>::parse(const OptionFacts& option, const std::string& given) {
  using namespace channel_option;
  std::vector<std::string> words = kChannelMethods.names();
  words.insert(words.end(), {std::string(protect.name), std::string(recent.name), kOff});
  const std::string word = in_known_spelling(given, words);
  const std::string name = word.substr(0, word.find('['));
  auto rule = channel_rule_named(name);
  if (!rule)
    throw OptionError(
        option_text("{}: unknown method '{}'{}", option, name, alternatives(name, rule_names())));
  rule->name = word;
  BoundOption share = bound_protection(protect, rule->protection);
  share.read = [&rule, read = share.read](const std::vector<std::string>& words) {
    read(words);
    if (!rule->protection) rule->protection = Protection{};  // off, whatever holds for all
  };
  read_own_options(option, word, {share, bind_option(recent, rule->recent)},
                   [](const OptionFacts&) { return std::nullopt; });
  return *rule;
}

void check_protection(const OptionFacts& option, const Protection& share, const std::string& word) {
  if (!(share.least >= 0 && share.least <= share.most && share.most <= 100))
    throw OptionError(option, "A:B, percent of the channels with 0 <= A <= B <= 100, or off",
                      fmt::format("'{}'", word));
}

void check_ratio(const OptionFacts& option, double ratio) {
  if (!(ratio >= 0 && ratio < 1))
    throw OptionError(option, "a pruning ratio from 0 to below 1", shortest(ratio));
}

RuleAndRatio OptionValue<RuleAndRatio>::parse(const OptionFacts& option, const std::string& word) {
  const std::size_t colon = word.rfind(':');
  const double ratio =
      colon == std::string::npos ? number("") : number(std::string_view(word).substr(colon + 1));
  if (std::isnan(ratio)) throw OptionError(option, "METHOD:RATIO, as in iap:0.5", fmt::format("'{}'", word));
  check_ratio(option, ratio);
  return {OptionValue<ChannelRule>::parse(option, word.substr(0, colon)), ratio};
}
std::string OptionValue<RuleAndRatio>::text(const RuleAndRatio& both) {
  return fmt::format("{}:{}", both.rule.name, shortest(both.ratio));
}

Protection OptionValue<Protection>::parse(const OptionFacts& option, const std::string& word) {
  const std::size_t colon = word.find(':');
  Protection share{-1, -1};
  if (colon != std::string::npos)
    share = {number(std::string_view(word).substr(0, colon)),
             number(std::string_view(word).substr(colon + 1))};
  check_protection(option, share, word);
  return share;
}
std::string OptionValue<Protection>::text(const Protection& share) {
  return fmt::format("{}:{}", shortest(share.least), shortest(share.most));
}

}  // namespace kvreplay
