#include "analysis/conform/conform.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay::conform {
namespace {

std::string tokens_text(Index least, Index most) {
  return least == most ? fmt::format("{} tokens in every head", least)
                       : fmt::format("{} to {} tokens a head", least, most);
}

/// "layers 0 to 29", "layers 3, 5 and 7", "layer 4".
std::string layers_text(const std::vector<Index>& layers) {
  const Index n = std::ssize(layers);
  if (n == 1) return fmt::format("layer {}", layers.front());
  if (n == layers.back() - layers.front() + 1)
    return fmt::format("layers {} to {}", layers.front(), layers.back());
  if (n > 8) return fmt::format("{} layers from {} to {}", n, layers.front(), layers.back());
  return fmt::format("layers {} and {}", fmt::join(layers.begin(), layers.end() - 1, ", "), layers.back());
}

std::string place_text(const TokenPlace& place) {
  std::string text = fmt::format("layer {}, head {}, token {} is {}", place.layer, place.head, place.position,
                                 place.extra ? "kept and should not be" : "not kept and should be");
  if (std::isfinite(place.score) && std::isfinite(place.cut))
    text += fmt::format(" (its score {:.6g}, {} {:.6g})", place.score,
                        place.extra ? "those to be kept begin at" : "those to be evicted end at", place.cut);
  return text;
}

std::string error_text(double value) { return fmt::format("{:.4g}", value); }

std::string budget_text(const Conformance& one) {
  std::string text = fmt::format("{} were to stay, {} did", tokens_text(one.meant_least, one.meant_most),
                                 tokens_text(one.found_least, one.found_most));
  if (one.all_kept) return text;
  if (one.layers_hold)
    text += "; every layer's sum is held";
  else if (one.found_total == one.meant_total)
    text += "; the sum over all layers is held";
  else
    text += fmt::format(", {:+} over all heads", one.found_total - one.meant_total);
  return text;
}

}  // namespace

std::string verdict_line(const ConformResult& result, const Conformance& one) {
  const std::string name = fmt::format("{}: ", kVerdicts[one.verdict].name);
  switch (one.verdict) {
    case Verdict::conforms:
      return fmt::format("{}{} heads keep exactly what {} keeps, {}", name, one.heads, result.policy,
                         tokens_text(one.found_least, one.found_most));
    case Verdict::ties:
      return fmt::format("{}{} of {} heads keep other tokens of equal score in {}, {} in all", name,
                         one.heads_tied, one.heads, result.numbers, counted(one.tokens, "token"));
    case Verdict::differs:
      return fmt::format("{}{} of {} heads keep other tokens than {}, {} in all, in {}", name,
                         one.heads_apart, one.heads, result.policy, counted(one.apart, "token"),
                         layers_text(one.layers_apart));
    case Verdict::nothing_evicted:
      return fmt::format("{}{}", name, budget_text(one));
    case Verdict::budget_not_held:
      return fmt::format("{}{} ({} of {} heads)", name, budget_text(one), one.budgets_apart, one.heads);
    case Verdict::cache_differs: {
      std::vector<std::string> texts;
      for (const HeldFinding& found : one.held)
        if (!found.as_meant) texts.push_back(fmt::format("{} {}", found.of, found.text));
      return fmt::format("{}{}", name, fmt::join(texts, "; "));
    }
    case Verdict::same_result:
      return fmt::format("{}{} and {} hold the same sets for budgets {} and {}", name,
                         result.cases[*one.same_as].file, one.file, result.cases[*one.same_as].budget,
                         one.budget);
  }
  return name;
}

std::string plain_text(const ConformResult& result) {
  std::string text;
  for (const HiddenPositions& hidden : result.hidden)
    text += fmt::format(
        "not compared: {} of {}, which a sliding window hides from every later row\n",
        hidden.positions == 1 ? "position 0" : fmt::format("positions 0 to {}", hidden.positions - 1),
        layers_text(hidden.layers));
  for (const Conformance& one : result.cases) {
    if (&one != &result.cases.front()) text += '\n';
    if (result.cases.size() > 1) text += fmt::format("{} (budget {})\n", one.file, one.budget);
    text += verdict_line(result, one) + '\n';
    if (one.first && one.verdict != Verdict::nothing_evicted && one.verdict != Verdict::cache_differs)
      text += fmt::format("  first: {}\n", place_text(*one.first));
    if (one.lowest_correlation || one.heads_off_scores > 0)
      text += fmt::format("  its scores rank as {}'s: rho {} in the lowest head; {}\n", result.policy,
                          one.lowest_correlation ? fmt::format("{:.4f}", *one.lowest_correlation) : "unknown",
                          one.heads_off_scores == 0
                              ? "what it keeps scores most by them"
                              : fmt::format("in {} of {} heads it keeps others than score most by them",
                                            one.heads_off_scores, one.heads));
    for (const HeldFinding& found : one.held)
      text += fmt::format("  {:<8}{} in {} of {} heads{}\n", found.of, found.text, found.heads, one.heads,
                          found.as_meant ? ""
                                         : fmt::format(" ({}; squared distance up to {} of theirs)",
                                                       layers_text(found.layers), error_text(found.most)));
    if (one.heads_out_of_order > 0)
      text += fmt::format(
          "  rows stand in another order than the prompt's in {} of {} heads, which attention does not "
          "mind\n",
          one.heads_out_of_order, one.heads);
    for (std::size_t r = 0; r < one.readings.size(); ++r) {
      const TriedReading& reading = one.readings[r];
      const bool exact = reading.left == 0;
      text += fmt::format("  {} {}",
                          exact && reading.elsewhere > 0 ? "the heads that depart keep"
                          : exact                        ? (r == 0 ? "what it keeps is" : "or it is")
                                                         : (r == 0 ? "nearest:" : "then   "),
                          reading.text);
      if (reading.elsewhere > 0)
        text += " (the others do not)";
      else if (exact)
        text += r == 0 ? "" : " (which keeps the same)";
      else if (reading.excuses)
        text += fmt::format(" (its rounding may explain all of {} tokens)", one.searched);
      else if (reading.unequal == 0)
        text += fmt::format(" ({} of {} tokens differ, all of equal score)", reading.left, one.searched);
      else if (reading.apart == 0)
        text += fmt::format(" ({} of {} tokens differ, by rounding alone)", reading.left, one.searched);
      else
        text += fmt::format(" ({} of {} tokens differ)", reading.left, one.searched);
      text += '\n';
    }
    if (one.readings.empty() && one.apart > 0 && one.tried > 0)
      text += fmt::format("  none of {} known readings comes nearer\n", one.tried);
    std::size_t width = 0;
    for (const ConformCost& cost : one.costs) width = std::max(width, cost.name.size());
    for (const ConformCost& cost : one.costs) {
      text += fmt::format("  {:<{}}  output error {}", cost.name, width, error_text(cost.output_error));
      if (cost.layer_output_error)
        text += fmt::format(", behind W_O {}", error_text(*cost.layer_output_error));
      if (cost.loss_step) text += fmt::format(", {} nats predicted", error_text(*cost.loss_step));
      text += '\n';
    }
  }
  return text;
}

Json json_of(const ConformResult& result) {
  Json json = {{"program", "kvreplay"},         {"ok", result.ok()},         {"policy", result.policy},
               {"semantics", result.semantics}, {"numbers", result.numbers}, {"report", plain_text(result)},
               {"not_compared", Json::array()}, {"cases", Json::array()}};
  for (const HiddenPositions& hidden : result.hidden)
    json["not_compared"].push_back({{"positions", hidden.positions}, {"layers", hidden.layers}});
  for (const Conformance& one : result.cases) {
    Json entry = {{"file", one.file},
                  {"budget", one.budget},
                  {"verdict", kVerdicts[one.verdict].name},
                  {"ok", kVerdicts[one.verdict].good},
                  {"text", verdict_line(result, one)},
                  {"heads", one.heads},
                  {"heads_apart", one.heads_apart},
                  {"heads_tied", one.heads_tied},
                  {"tokens", one.tokens},
                  {"tokens_apart", one.apart},
                  {"layers_apart", one.layers_apart},
                  {"tokens_meant", one.meant_total},
                  {"tokens_found", one.found_total},
                  {"budgets_apart", one.budgets_apart}};
    if (one.first)
      entry["first"] = {{"layer", one.first->layer},
                        {"head", one.first->head},
                        {"position", one.first->position},
                        {"kept", one.first->extra}};
    if (one.lowest_correlation)
      entry["scores"] = {{"lowest_spearman", *one.lowest_correlation}, {"heads_off", one.heads_off_scores}};
    for (const HeldFinding& found : one.held)
      entry["held"].push_back({{"of", found.of},
                               {"text", found.text},
                               {"as_meant", found.as_meant},
                               {"heads", found.heads},
                               {"layers", found.layers},
                               {"squared_distance", found.most}});
    for (const TriedReading& reading : one.readings)
      entry["readings"].push_back({{"text", reading.text},
                                   {"tokens_left", reading.left},
                                   {"tokens_apart", reading.apart},
                                   {"tokens_apart_elsewhere", reading.elsewhere},
                                   {"of", one.searched}});
    for (const ConformCost& cost : one.costs) {
      Json& to = entry["costs"][cost.name];
      to["output_error"] = cost.output_error;
      if (cost.layer_output_error) to["layer_output_error"] = *cost.layer_output_error;
      if (cost.loss_step) to["loss_step"] = *cost.loss_step;
    }
    json["cases"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace kvreplay::conform
