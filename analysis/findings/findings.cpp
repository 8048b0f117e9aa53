#include "analysis/findings/findings.hpp"

#include "analysis/findings/candidates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace kvreplay {

std::string_view name_of(FindingKind kind) {
  constexpr std::array<std::string_view, 9> kNames{"head", "future",  "policy",   "layer", "compensation",
                                                   "cost", "budgets", "channels", "sum"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string factor_text(double factor) {
  return factor < 10 ? fmt::format("{:.2g}", factor) : fmt::format("{:.0f}", factor);
}

std::string value_text(double value) { return fmt::format("{:.3g}", value); }

std::vector<Finding> findings_of(const FigureTables& tables, const TokenSource& tokens) {
  std::vector<Finding> found = compensation_findings(tables.compensation);
  for (const std::optional<Finding>& one :
       {misranked_head(tables, tokens), missing_future(tables.agreement), best_policy(tables),
        heaviest_layer(tables), shared_budget(tables.budgets), pruned_channels(tables.channels),
        ruled_sum(tables, tokens)})
    if (one) found.push_back(*one);
  std::erase_if(found,
                [](const Finding& one) { return one.weight < kDecides && one.kind != FindingKind::policy; });
  std::sort(found.begin(), found.end(), [](const Finding& a, const Finding& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.kind < b.kind;
  });
  if (found.size() > kMostFindings) found.resize(kMostFindings, found.front());
  return found;
}

std::vector<Finding> findings_of(const Tables& tables) {
  return findings_of(tables, token_source(tables.results));
}

std::vector<Finding> findings_of(const ResultReader& results) { return findings_of(Tables(results)); }

std::string text_of(const std::vector<Finding>& findings) {
  std::string text = findings.empty() ? "" : "Worth knowing:\n";
  for (const Finding& one : findings) text += fmt::format("- {}\n", one.text);
  return text;
}

nlohmann::ordered_json json_of(const std::vector<Finding>& findings) {
  auto json = nlohmann::ordered_json::array();
  for (const Finding& one : findings) {
    nlohmann::ordered_json place = {{"table", name_of(one.place.table)}};
    const auto add = [&](const char* name, const std::optional<Index>& number) {
      if (number) place[name] = *number;
    };
    add("layer", one.place.layer);
    add("kv_head", one.place.kv_head);
    add("token", one.place.token);
    for (const auto& [column, value] : one.place.keys) place[column] = value;
    json.push_back({{"kind", name_of(one.kind)}, {"text", one.text}, {"place", std::move(place)}});
  }
  return json;
}

}  // namespace kvreplay
