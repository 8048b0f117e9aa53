#include "analysis/recommend/left_out.hpp"
#include "analysis/recommend/recommend.hpp"
#include "analysis/results/kept_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace kvreplay::recommend {
namespace {

/// "h2o in 24 layers, snapkv in 6": the most first; of one kind its name alone.
std::string shares_text(const std::map<std::string, Index>& counts) {
  std::vector<std::pair<std::string, Index>> sorted(counts.begin(), counts.end());
  std::ranges::stable_sort(sorted, std::greater<>{}, &std::pair<std::string, Index>::second);
  if (sorted.size() == 1) return sorted.front().first;
  std::vector<std::string> parts;
  for (const auto& [name, n] : sorted)
    parts.push_back(
        fmt::format("{} in {}", name, parts.empty() ? counted(n, "layer") : fmt::format("{}", n)));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string rounded_percent(double share) { return percent(std::round(1000 * share) / 1000); }

std::string name_of(const Candidate& candidate) { return way_text(candidate.use, candidate.where); }

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

/// Columns that are as wide as what stands in them, two blanks between them; the last one as it is.
std::string columns_text(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const std::vector<std::string>& row : rows)
    for (std::size_t c = 0; c + 1 < row.size(); ++c) {
      widths.resize(std::max(widths.size(), c + 1));
      widths[c] = std::max(widths[c], row[c].size());
    }
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c)
      line += fmt::format("  {:<{}}", row[c], c + 1 < row.size() ? widths[c] : 0);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string recommendation_text(const MeasuredLevers& measured, const Recommended& found,
                                const Recommendation& one) {
  std::string text = fmt::format(
      "\nwithin {}{}\n", one.memory.text,
      one.memory.share > 0 ? " of the bytes" : fmt::format(" ({} of the bytes)", rounded_percent(one.share)));
  if (one.candidates.empty()) return text + "  nothing that was measured is as small\n";
  std::vector<std::vector<std::string>> rows;
  for (const Candidate& candidate : one.candidates)
    rows.push_back({name_of(candidate), mean_text(candidate.nats), rounded_percent(candidate.chosen.bytes),
                    candidate.where == Where::everywhere ? chosen_text(measured, candidate) : ""});
  const Candidate& best = one.candidates.front();
  text +=
      columns_text(rows) + fmt::format("  recommended: {}: {}\n", name_of(best), chosen_text(measured, best));
  if (const std::string sure = sure_text(one); !sure.empty()) text += fmt::format("  {}\n", sure);
  if (const std::string how = engine_flags(measured, found.engine, recipe_of(measured, best.chosen));
      !how.empty())
    text += fmt::format("  {}\n", how);
  return text;
}

/// A row a case; columns of what is known of some.
std::string cases_text(const MeasuredLevers& measured, const std::vector<CaseOver>& cases) {
  struct Column {
    const char* name;
    OverDumps CaseOver::*figure;
  };
  std::vector<Column> columns{{"output error", &CaseOver::output_error},
                              {"true KL", &CaseOver::kl},
                              {"right answers", &CaseOver::right}};
  if (measured.in_nats) columns.insert(columns.begin(), {"nats", &CaseOver::nats});
  std::erase_if(columns, [&](const Column& column) {
    return std::ranges::all_of(cases, [&](const CaseOver& one) { return (one.*column.figure).n == 0; });
  });
  std::vector<std::vector<std::string>> rows{{"bytes"}};
  for (const Column& column : columns) rows.front().emplace_back(column.name);
  rows.front().emplace_back("");
  for (const CaseOver& one : cases) {
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(rounded_percent(one.bytes.mean));
    for (const Column& column : columns) row.push_back(mean_text(one.*column.figure));
    row.push_back(one.text);
  }
  return columns_text(rows);
}

Json cases_json(const std::vector<CaseOver>& cases) {
  Json all = Json::array();
  for (const CaseOver& one : cases) {
    Json& json = all.emplace_back(Json{{"text", one.text}, {"bytes", one.bytes.mean}});
    for (const auto& [name, figure] :
         {std::pair("nats", &CaseOver::nats), std::pair("output_error", &CaseOver::output_error),
          std::pair("kl", &CaseOver::kl), std::pair("right", &CaseOver::right)})
      if ((one.*figure).n > 0) json[name] = interval_json(one.*figure);
  }
  return all;
}

}  // namespace

std::string way_text(Use use, Where where) {
  const char* const each = use == Use::bits ? "each layer its own" : "each head its own";
  return fmt::format("{}, {}", kUses[use].name, where == Where::each ? each : "the same everywhere");
}

std::string chosen_text(const MeasuredLevers& measured, const Candidate& candidate) {
  const auto n_kv = static_cast<std::size_t>(measured.shape.n_kv);
  const std::vector<std::size_t>& levers = candidate.chosen.levers;
  if (candidate.where == Where::everywhere) return measured.levers[levers.front()].text();
  std::map<std::string, Index> formats, policies;
  double least = 1, most = 0, sum = 0;
  const Recipe recipe = recipe_of(measured, candidate.chosen);
  for (std::size_t l = 0; l < recipe.layers.size(); ++l) {
    const std::string& format = measured.levers[levers[l * n_kv]].format;
    ++formats[format == "16" ? "16 bits" : format];
    if (const auto& policy = recipe.layers[l].policy) ++policies[policy->name];
    for (const double sigma : recipe.layers[l].sigma) {
      const double kept = rest_of(sigma);
      least = std::min(least, kept);
      most = std::max(most, kept);
      sum += kept;
    }
  }
  std::string text = shares_text(formats);
  if (policies.empty()) return text;
  text += "; " + shares_text(policies);
  if (least == most) return text + fmt::format(", {} of every head's tokens kept", percent(least));
  return text + fmt::format(", {} to {} of a head's tokens kept, {} on average", percent(least),
                            percent(most), rounded_percent(sum / static_cast<double>(levers.size())));
}

std::string plain_text(const MeasuredLevers& measured, const Recommended& found) {
  const std::ptrdiff_t prompts = std::ssize(measured.prompts);
  std::string text = fmt::format(
      "{}: {}, {} ways to hold a cache. {} {}{}\n", measured.model.empty() ? "model" : measured.model,
      counted(prompts, "prompt"), measured.levers.size(),
      measured.in_nats ? "Predicted nats a token" : "Output error (no gradients), mean over heads,",
      prompts > 1 ? "of each prompt under what the others choose" : "of the prompt that it is chosen on",
      prompts >= kFewestPrompts ? " [95 %]" : "");
  for (const Recommendation& one : found.recommendations) text += recommendation_text(measured, found, one);
  if (const std::string left = left_out_text(measured, found.engine); !left.empty())
    text += fmt::format("\n{}\n", left);
  text += "\nthe same everywhere, at any size\n" + cases_text(measured, found.front);
  if (!found.run.empty())
    text += "\nrecipes as they were run, all heads at once\n" + cases_text(measured, found.run);
  if (found.kl_cases > 0)
    text += fmt::format("true KL is {} of what is predicted ({} cases)\n", mean_text(found.kl_over_predicted),
                        found.kl_cases);
  if (prompts < kFewestPrompts)
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
    if (const std::string how =
            engine_flags(measured, found.engine, recipe_of(measured, one.candidates.front().chosen));
        !how.empty())
      all.back()["told"] = how;
  }
  json["left_out"] = left_out_text(measured, found.engine);
  json["front"] = cases_json(found.front);
  if (!found.run.empty()) json["run"] = cases_json(found.run);
  if (found.kl_cases > 0) json["kl_over_predicted"] = interval_json(found.kl_over_predicted);
  json["notes"] = measured.notes;
  json["report"] = plain_text(measured, found);
  return json;
}

std::string way_of(Use use, Where where) {
  return fmt::format("{}-{}", kUses[use].word, where == Where::each ? "each" : "everywhere");
}

Json recipe_json(const MeasuredLevers& measured, const Recommended& found, const Recommendation& of,
                 const Candidate& candidate) {
  const Recipe recipe = recipe_of(measured, candidate.chosen);
  Json json = to_json(recipe);
  json["chosen"] = {
      {"for", kEngines[found.engine].name}, {"within", of.share}, {"prompts", names_of_prompts(measured)}};
  json["chosen"].update(candidate_json(measured, candidate));
  if (&candidate == &of.candidates.front() && of.against_second)
    json["chosen"]["over_runner_up"] = pair_json(*of.against_second);
  if (const std::string how = engine_flags(measured, found.engine, recipe); !how.empty())
    json["chosen"]["told"] = how;
  return json;
}

}  // namespace kvreplay::recommend
