#include "analysis/eviction/eviction_names.hpp"

#include "analysis/options/nearest_name.hpp"
#include "analysis/results/csv.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

namespace kvreplay {
namespace {

std::optional<Index> whole(std::string_view text) {
  Index value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  constexpr Index kMost = std::numeric_limits<Index>::max() / 4;  // so that positions can be added to it
  return value <= kMost ? std::optional(value) : std::nullopt;
}

std::vector<std::string> names_taking_a_score() {
  return kBases.names_where([](const BaseFacts& facts) { return facts.takes_score; });
}

}  // namespace

Semantics parse_semantics(const std::string& option, const std::string& name) {
  if (const auto semantics = kSemantics.named(name)) return *semantics;
  const std::vector<std::string> names = kSemantics.names();
  throw InputError(option,
                   fmt::format("{} or {}", fmt::join(names.begin(), names.end() - 1, ", "), names.back()),
                   fmt::format("'{}'", name));
}

Phase parse_phase(const std::string& text) {
  if (text == "prefill") return {};
  if (text == "decode") return {Phase::Kind::decode, 0};
  if (text == "append-only") return {Phase::Kind::append_only, 0};
  constexpr std::string_view kBlockwise = "blockwise:";
  if (text.starts_with(kBlockwise)) {
    const auto block = whole(std::string_view(text).substr(kBlockwise.size()));
    if (block && *block >= 1) return {Phase::Kind::blockwise, *block};
  }
  throw InputError("--phase", "prefill, blockwise:N with N of at least 1, decode or append-only",
                   fmt::format("'{}'", text));
}

Policy parse_policy(const std::string& text, const std::vector<Given<double>>& scores) {
  const auto plus = text.find('+');
  const std::string base_name = text.substr(0, plus);
  Policy policy;
  policy.name = text;
  const auto base = kBases.named(base_name);
  if (!base)
    throw InputError(fmt::format(
        "--policy: unknown policy '{}'{}", base_name,
        scores.end() !=
                std::find_if(scores.begin(), scores.end(), [&](const auto& s) { return s.name == base_name; })
            ? fmt::format("; a score is used as BASE+{}", base_name)
            : did_you_mean(base_name, kBases.names())));
  policy.base = *base;
  if (plus == std::string::npos) return policy;
  const std::string score = text.substr(plus + 1);
  if (!kBases[*base].takes_score)
    throw InputError(fmt::format("--policy: {} ranks by what it is named after and takes no score; {} do",
                                 base_name, fmt::join(names_taking_a_score(), ", ")));
  const auto given =
      std::find_if(scores.begin(), scores.end(), [&](const auto& s) { return s.name == score; });
  if (given != scores.end())
    policy.given = static_cast<std::size_t>(given - scores.begin());
  else if (const auto metric = kTokenMetrics.named(score))
    policy.metric = *metric;
  else if (const auto start = kBases.named(score);
           *base == Base::exchange && start && *start != Base::exchange)
    policy.start = *start;
  else {
    std::vector<std::string> metrics = kTokenMetrics.names();
    for (const Given<double>& known : scores) metrics.push_back(known.name);
    throw InputError(fmt::format("--policy: unknown score '{}'{}", score, did_you_mean(score, metrics)));
  }
  return policy;
}

Pooling parse_pooling(const std::string& text) {
  if (text == "none") return {};
  const auto colon = text.find(':');
  const std::string kind = text.substr(0, colon);
  const Index width =
      colon == std::string::npos ? 0 : whole(std::string_view(text).substr(colon + 1)).value_or(0);
  if ((kind != "max" && kind != "avg") || width < 1 || width % 2 == 0)
    throw InputError("--pool", "max:N or avg:N with an odd N, or none", fmt::format("'{}'", text));
  return {kind == "max" ? Pooling::Kind::max : Pooling::Kind::avg, width};
}

void check_sigma(const std::string& option, double sigma) {
  if (!(sigma > 0 && sigma < 1))
    throw InputError(option, "compression ratios between 0 and 1, both excluded", shortest(sigma));
}

}  // namespace kvreplay
