#include "viewer/questions/named_choices.hpp"

#include <algorithm>

namespace kvreplay::viewer {

std::string_view group_of(MetricKind kind) {
  switch (kind) {
    case MetricKind::score:
      return "Estimates, on the window";
    case MetricKind::exact:
      return "Truth: exact errors, on the window";
    case MetricKind::oracle:
      return "Oracles, on the decoding steps";
  }
  return "";
}

std::string_view group_of(EvictionBase base) {
  const EvictionBaseFacts& facts = kBases[base];
  if (facts.searches) return "Searches: exact, slow";
  if (facts.reads) return "Keep all, each query reads less";
  const bool knows_future = facts.metric && kTokenMetrics[*facts.metric].kind == MetricKind::oracle;
  return knows_future ? "Oracles: know the decoding steps" : "Can be run";
}

Choice choice_of(TokenMetric metric) {
  const TokenMetricFacts& facts = kTokenMetrics[metric];
  return {std::string(facts.name), std::string(facts.plain), std::string(facts.meaning),
          group_of(facts.kind)};
}

Choice choice_of(EvictionBase base) {
  const EvictionBaseFacts& facts = kBases[base];
  return {std::string(facts.name), std::string(facts.plain), std::string(facts.meaning), group_of(base)};
}

std::vector<Choice> base_choices() {
  std::vector<Choice> choices;
  for (const EvictionBase base : kBases.all()) choices.push_back(choice_of(base));
  const auto rank = [](const Choice& choice) {
    if (choice.group.starts_with("Can")) return 0;
    return choice.group.starts_with("Keep") ? 1 : choice.group.starts_with("Searches") ? 2 : 3;
  };
  std::stable_sort(choices.begin(), choices.end(),
                   [&](const Choice& a, const Choice& b) { return rank(a) < rank(b); });
  return choices;
}

}  // namespace kvreplay::viewer
