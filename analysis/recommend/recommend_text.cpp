#include "analysis/recommend/recommend.hpp"
#include "analysis/results/kept_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace kvreplay::recommend {
namespace {

/// "h2o in 24 layers, snapkv in 6": the most first; of one kind its name alone.
std::string shares_text(const std::map<std::string, Index>& counts, const char* suffix = " layers") {
  std::vector<std::pair<std::string, Index>> sorted(counts.begin(), counts.end());
  std::ranges::stable_sort(sorted, std::greater<>{}, &std::pair<std::string, Index>::second);
  if (sorted.size() == 1) return sorted.front().first;
  std::vector<std::string> parts;
  for (const auto& [name, n] : sorted)
    parts.push_back(fmt::format("{} in {}{}", name, n, parts.empty() ? suffix : ""));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string name_of(const Candidate& candidate) {
  return fmt::format("{}, {}", kUses[candidate.use].name,
                     candidate.where == Where::each ? "each head its own" : "the same everywhere");
}

std::string unit(const MeasuredLevers& measured) { return measured.in_nats ? "nats" : "output error"; }

Json interval_json(const OverDumps& over) {
  return {{"prompts", over.n}, {"mean", over.center()}, {"low", over.low}, {"high", over.high}};
}

double gap(const Chosen& chosen) { return chosen.nats > 0 ? 1 - chosen.bound / chosen.nats : 0; }

Json candidate_json(const MeasuredLevers& measured, const Candidate& one) {
  return {{"levers", kUses[one.use].name},
          {"where", one.where == Where::each ? "each" : "everywhere"},
          {"text", chosen_text(measured, one)},
          {"bytes", one.chosen.bytes},
          {measured.in_nats ? "nats" : "output_error", interval_json(one.nats)},
          {"of_prompts", one.held_out},
          {"chosen_on_all", one.chosen.nats},
          {"gap_to_bound", gap(one.chosen)}};
}

Json pair_json(const Paired& paired) {
  return {{"ratio", paired.center()}, {"low", paired.lower()},     {"high", paired.upper()},
          {"wins", paired.wins},      {"prompts", paired.prompts}, {"p", paired.p}};
}

std::vector<std::string> names_of_prompts(const MeasuredLevers& measured) {
  std::vector<std::string> names;
  for (const MeasuredPrompt& prompt : measured.prompts) names.push_back(prompt.name);
  return names;
}

std::string sure_text(const Recommendation& of) {
  if (!of.against_second) return "";
  const Paired& paired = *of.against_second;
  std::string text = fmt::format("it costs {:.2g}", paired.center());
  if (std::isfinite(paired.low)) text += fmt::format(" [{:.2g}, {:.2g}]", paired.lower(), paired.upper());
  text += fmt::format(" of the runner-up, less in {} of {} prompts", paired.wins, paired.prompts);
  if (paired.p < kToldApart) return text;
  text += ": they are not told apart";
  if (of.prompts_needed)
    text += fmt::format("; about {} prompts would, if the difference is real", *of.prompts_needed);
  return text;
}

}  // namespace

std::string chosen_text(const MeasuredLevers& measured, const Candidate& candidate) {
  const auto n_kv = static_cast<std::size_t>(measured.shape.n_kv);
  const std::vector<std::size_t>& levers = candidate.chosen.levers;
  if (candidate.where == Where::everywhere) return measured.levers[levers.front()].text();
  std::map<std::string, Index> formats, policies;
  double least = 1, most = 0, sum = 0;
  for (std::size_t h = 0; h < levers.size(); ++h) {
    const Lever& lever = measured.levers[levers[h]];
    least = std::min(least, 1 - lever.sigma);
    most = std::max(most, 1 - lever.sigma);
    sum += 1 - lever.sigma;
    if (h % n_kv == 0) ++formats[lever.format == "16" ? "16 bits" : lever.format];
    if (lever.evicts && h % n_kv == 0) ++policies[lever.evicts->name];
  }
  for (std::size_t h = 0; h < levers.size(); h += n_kv)  // the first head may keep all
    for (std::size_t g = 1; g < n_kv && !measured.levers[levers[h]].evicts; ++g)
      if (const auto& evicts = measured.levers[levers[h + g]].evicts) {
        ++policies[evicts->name];
        break;
      }
  std::string text = shares_text(formats);
  if (!policies.empty())
    text += fmt::format("; {}, {} to {} of a head's tokens kept, {} on average", shares_text(policies),
                        percent(least), percent(most),
                        percent(std::round(1000 * sum / static_cast<double>(levers.size())) / 1000));
  return text;
}

std::string plain_text(const MeasuredLevers& measured, const Recommended& found) {
  const std::size_t prompts = measured.prompts.size();
  std::string text = fmt::format(
      "{}: {}, {} ways to hold a cache. {} {}{}\n", measured.model.empty() ? "model" : measured.model,
      counted(static_cast<std::ptrdiff_t>(prompts), "prompt"), measured.levers.size(),
      measured.in_nats ? "Predicted nats a token" : "Output error (no gradients), mean over heads,",
      prompts > 1 ? "of each prompt under what the others choose" : "of the prompt that it is chosen on",
      static_cast<std::ptrdiff_t>(prompts) >= kFewestPrompts ? " [95 %]" : "");
  for (const Recommendation& one : found.recommendations) {
    text += fmt::format("\nwithin {}{}\n", one.memory.text,
                        one.memory.share > 0 ? " of the bytes"
                                             : fmt::format(" ({} of the bytes)",
                                                           percent(std::round(1000 * one.share) / 1000)));
    if (one.candidates.empty()) {
      text += "  nothing that was measured is as small\n";
      continue;
    }
    std::size_t width = 0, wide = 0;
    for (const Candidate& candidate : one.candidates) {
      width = std::max(width, name_of(candidate).size());
      wide = std::max(wide, mean_text(candidate.nats).size());
    }
    for (const Candidate& candidate : one.candidates)
      text += fmt::format(
          "  {:<{}}  {:<{}}  {:>5}  {}\n", name_of(candidate), width, mean_text(candidate.nats), wide,
          percent(std::round(1000 * candidate.chosen.bytes) / 1000), chosen_text(measured, candidate));
    text += fmt::format("  recommended: {}", name_of(one.candidates.front()));
    if (const std::string sure = sure_text(one); !sure.empty()) text += "; " + sure;
    text += "\n";
    if (const std::string how = told(found.engine, recipe_of(measured, one.candidates.front().chosen));
        !how.empty())
      text += fmt::format("  {}\n", how);
  }
  text +=
      fmt::format("\nthe same everywhere, at any size\n  {:>6}  {:<28}  {:<28}{}\n", "bytes", unit(measured),
                  "output error", found.kl_cases > 0 ? fmt::format("  {:<28}", "true KL") : "");
  for (const FrontPoint& point : found.front) {
    text += fmt::format("  {:>6}  {:<28}  {:<28}", percent(std::round(1000 * point.bytes) / 1000),
                        mean_text(point.nats), mean_text(point.output_error));
    if (found.kl_cases > 0) text += fmt::format("  {:<28}", mean_text(point.kl));
    text += fmt::format("  {}\n", measured.levers[point.lever].text());
  }
  if (found.kl_cases > 0)
    text += fmt::format("true KL is {} of what is predicted ({} cases)\n", mean_text(found.kl_over_predicted),
                        found.kl_cases);
  if (prompts < static_cast<std::size_t>(kFewestPrompts))
    text += fmt::format("measure more prompts: fewer than {} have no interval\n", kFewestPrompts);
  return text;
}

Json json_of(const MeasuredLevers& measured, const Recommended& found) {
  Json json = {{"program", "kvreplay"},
               {"model", measured.model},
               {"prompts", names_of_prompts(measured)},
               {"ways", measured.levers.size()},
               {"unit", measured.in_nats ? "nats a token, predicted" : "output error"},
               {"for", kEngines[found.engine].name}};
  Json& all = json["recommendations"] = Json::array();
  for (const Recommendation& one : found.recommendations) {
    Json candidates = Json::array();
    for (const Candidate& candidate : one.candidates)
      candidates.push_back(candidate_json(measured, candidate));
    all.push_back({{"bytes", one.memory.text}, {"share", one.share}, {"candidates", candidates}});
    if (one.against_second) all.back()["first_over_second"] = pair_json(*one.against_second);
    if (one.prompts_needed) all.back()["prompts_needed"] = *one.prompts_needed;
    if (one.candidates.empty()) continue;
    if (const std::string how = told(found.engine, recipe_of(measured, one.candidates.front().chosen));
        !how.empty())
      all.back()["told"] = how;
  }
  Json& front = json["front"] = Json::array();
  for (const FrontPoint& point : found.front) {
    front.push_back({{"text", measured.levers[point.lever].text()},
                     {"bytes", point.bytes},
                     {measured.in_nats ? "nats" : "mean_output_error", interval_json(point.nats)},
                     {"output_error", interval_json(point.output_error)}});
    if (point.kl.n > 0) front.back()["kl"] = interval_json(point.kl);
  }
  if (found.kl_cases > 0) json["kl_over_predicted"] = interval_json(found.kl_over_predicted);
  json["notes"] = measured.notes;
  return json;
}

Json recipe_json(const MeasuredLevers& measured, const Recommended& found, const Recommendation& of) {
  const Candidate& best = of.candidates.front();
  const Recipe recipe = recipe_of(measured, best.chosen);
  Json json = to_json(recipe);
  json["chosen"] = {
      {"for", kEngines[found.engine].name}, {"within", of.share}, {"prompts", names_of_prompts(measured)}};
  json["chosen"].update(candidate_json(measured, best));
  if (of.against_second) json["chosen"]["over_runner_up"] = pair_json(*of.against_second);
  if (const std::string how = told(found.engine, recipe); !how.empty()) json["chosen"]["told"] = how;
  return json;
}

}  // namespace kvreplay::recommend
