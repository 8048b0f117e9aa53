#include "analysis/recommend/left_out.hpp"
#include "analysis/recommend/recommend.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/metric_table.hpp"
#include "data/number_text.hpp"

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
/// A byte share, which may exceed the budget by rounding: "25.04 %".
std::string bytes_percent(double share) { return percent(std::round(10000 * share) / 10000); }

std::string name_of(const Candidate& candidate) { return way_text(candidate.use, candidate.where); }

Json interval_json(const OverDumps& over) {
  return {{"prompts", over.n}, {"mean", over.center()}, {"low", over.low}, {"high", over.high}};
}

double gap(const Chosen& chosen) { return chosen.nats > 0 ? 1 - chosen.bound / chosen.nats : 0; }

Json candidate_json(const MeasuredLevers& measured, const Candidate& one) {
  Json json = {{"levers", kUses[one.use].name},
               {"where", one.where == Where::each ? "each" : "everywhere"},
               {"text", chosen_text(measured, one)},
               {"bytes", one.chosen.bytes},
               {"bytes_of_prompts", one.bytes_of_prompts},
               {measured.in_nats ? "nats" : "output_error", interval_json(one.nats)},
               {"of_prompts", one.held_out},
               {"chosen_on_all", one.chosen.nats},
               {"gap_to_bound", gap(one.chosen)},
               {"interpolated", one.chosen.between.has_value()}};
  if (one.worst)
    json["worst"] = {{"prompt", measured.prompts[*one.worst].name}, {"cost", one.held_out[*one.worst]}};
  return json;
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

/// The ratio to the runner-up: "'A' costs 0.34 [0.24, 0.46] of 'B', less in 3 of 3 prompts".
std::string over_runner_up(const Recommendation& of) {
  const Paired& paired = *of.against_second;
  return fmt::format("'{}' costs {} of '{}', less in {} of {} prompts", name_of(of.candidates[0]),
                     over_second_text(of), name_of(of.candidates[1]), paired.wins, paired.prompts);
}

std::string not_told_apart(const Recommendation& of) {
  const std::ptrdiff_t prompts = of.against_second->prompts;
  std::string text = fmt::format("not told apart: {}", over_runner_up(of));
  if (prompts < kFewestPrompts)
    text += fmt::format("; {} are too few to tell", counted(prompts, "prompt"));
  else if (of.prompts_needed)
    text += fmt::format("; about {} prompts would tell, if the difference is real", *of.prompts_needed);
  return text;
}

/// A budget as --keep takes it: "80", "20.5%".
std::string keep_word(const Budget& budget) {
  return budget.tokens ? budget.label() : shortest(std::round(1000 * rest_of(budget.sigma)) / 10) + "%";
}

/// "80 tokens", "20 %"
std::string amount_text(const Budget& budget) {
  return budget.tokens ? counted(*budget.tokens, "token") : percent(rest_of(budget.sigma));
}

/// Warns if the runner-up leaves bytes unused, which can inflate its cost. Else empty.
std::string unequal_bytes(const MeasuredLevers& measured, const Recommendation& of) {
  if (of.candidates.size() < 2) return "";
  const Candidate &first = of.candidates[0], &second = of.candidates[1];
  constexpr double kEqual = 0.02;
  if (second.chosen.bytes >= (1 - kEqual) * first.chosen.bytes) return "";
  const Lever& lever = measured.levers[second.chosen.levers.front()];
  std::string text = fmt::format("not at equal bytes: {} takes {} of them", name_of(second),
                                 bytes_percent(second.chosen.bytes));
  if (second.where == Where::everywhere && !lever.keeps_all()) {
    const double more = first.chosen.bytes / second.chosen.bytes, kept = more * rest_of(lever.keeps.sigma);
    text += fmt::format("; measure --keep {} too",
                        lever.keeps.tokens
                            ? fmt::format("{:.0f}", more * static_cast<double>(*lever.keeps.tokens))
                        : kept < 1 ? shortest(std::round(100 * kept)) + "%"
                                   : "none");
  }
  return text;
}

/// The prompt that exceeds the budget most; empty if none does.
std::string excess(const MeasuredLevers& measured, const Recommendation& of, const Candidate& candidate) {
  const auto most = std::ranges::max_element(candidate.asked_of_prompts);
  if (!(*most > of.share * (1 + 1e-6))) return "";
  const auto p = static_cast<std::size_t>(most - candidate.asked_of_prompts.begin());
  return fmt::format(
      "{} of the bytes of prompt {}, which exceeds {}: budgets are met on average over prompts",
      bytes_percent(candidate.bytes_of_prompts[p]), measured.prompts[p].name, of.memory.text);
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

/// Lengths of the prompts: "512 tokens", "500 to 900 tokens".
std::string lengths_text(const MeasuredLevers& measured) {
  const auto [least, most] = std::ranges::minmax(measured.prompts, {}, &MeasuredPrompt::l);
  return least.l == most.l ? counted(least.l, "token") : fmt::format("{} to {} tokens", least.l, most.l);
}

std::string nothing_fits(const Recommended& found, const Recommendation& one) {
  constexpr std::string_view kNothing = "  nothing that was measured is as small";
  const EngineFacts& engine = kEngines[found.engine];
  if (!one.smallest)
    return fmt::format("{}: nothing of it runs in {}; measure {}, or choose --for any\n", kNothing,
                       engine.name,
                       engine.evicts ? "--bits 16" : fmt::format("--policy none --bits {}", engine.name));
  const Smallest& least = *one.smallest;
  return fmt::format(
      "{}: the smallest is {}, {} of the bytes, {}\n  choose it with --bytes {}, or measure "
      "smaller ones{}\n",
      kNothing, least.text, bytes_percent(least.share), bytes_text(least.bytes, std::round), least.to_type,
      found.engine == Engine::any ? "" : ", or choose --for any");
}

/// A table with one row per candidate and a header of column names.
std::string candidates_text(const MeasuredLevers& measured, const Recommended& found,
                            const Recommendation& one) {
  std::vector<std::vector<std::string>> rows{{"", measured.in_nats ? "nats" : "output error, mean of heads"}};
  const bool judged = one.candidates.front().worst.has_value();
  if (judged) rows.front().emplace_back("worst prompt");
  rows.front().emplace_back("bytes");
  if (found.context) rows.front().push_back(fmt::format("at {}", lengths_text(measured)));
  rows.front().emplace_back("");
  for (const Candidate& candidate : one.candidates) {
    std::vector<std::string>& row = rows.emplace_back();
    row = {name_of(candidate), mean_text(candidate.nats)};
    if (judged)
      row.push_back(candidate.worst ? fmt::format("{} {}", short_number(candidate.held_out[*candidate.worst]),
                                                  measured.prompts[*candidate.worst].name)
                                    : "-");
    row.push_back(bytes_percent(candidate.chosen.bytes));
    if (found.context) row.push_back(bytes_percent(mean(candidate.bytes_of_prompts)));
    row.push_back(candidate.where == Where::everywhere ? chosen_text(measured, candidate) : "");
  }
  return columns_text(rows);
}

std::string recommendation_text(const MeasuredLevers& measured, const Recommended& found,
                                const Recommendation& one) {
  std::string of = " of the bytes";
  if (one.memory.share <= 0)
    of = fmt::format(" ({} of the bytes of {}{} tokens)", bytes_percent(one.share),
                     found.batch > 1 ? fmt::format("{} x ", found.batch) : "", *found.context);
  else if (found.context)
    of += fmt::format(" of {} tokens", *found.context);
  std::string text = fmt::format("\nwithin {}{}\n", one.memory.text, of);
  if (one.candidates.empty()) return text + nothing_fits(found, one);
  text += candidates_text(measured, found, one);
  const Candidate &lowest = one.candidates.front(), &best = one.winner();
  const auto line = [&](std::string_view label, const Candidate& candidate) {
    text += fmt::format("  {}: {}: {}\n", label, name_of(candidate), chosen_text(measured, candidate));
  };
  line(verdict(found, one), best);
  if (one.taken > 0) line(kBy[found.by].lowest, lowest);
  const By other = found.by == By::mean ? By::worst : By::mean;
  const auto& least =
      *std::ranges::min_element(one.candidates, {}, [&](const Candidate& c) { return c.cost(other); });
  if (&least != &best && (one.taken == 0 || &least != &lowest) && best.worst) line(kBy[other].lowest, least);
  if (best.chosen.between)
    text += fmt::format("  its nats are interpolated: measure --keep {} to be sure\n",
                        keep_word(best.chosen.between->keeps));
  for (const std::string& more : {!one.against_second ? std::string()
                                  : one.told_apart()  ? over_runner_up(one)
                                                      : not_told_apart(one),
                                  one.against_second ? unequal_bytes(measured, one) : "",
                                  found.context ? std::string() : excess(measured, one, best),
                                  engine_flags(measured, found.engine, recipe_of(measured, best.chosen))})
    if (!more.empty()) text += fmt::format("  {}\n", more);
  return text;
}

/// A row a case; columns of what is known of some.
std::string cases_text(const MeasuredLevers& measured, const std::vector<CaseOver>& cases) {
  struct Column {
    const char* name;
    OverDumps CaseOver::*figure;
  };
  std::vector<Column> columns{{"output error, all heads", &CaseOver::output_error},
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

/// The loss of q4_0 keys that an engine writes, over that of stored ones: sim/cache/CURES.md, which a test
/// reads.
constexpr std::string_view kWrittenOverStored =
    "13 [5.2, 33] times on Qwen2.5-Coder-0.5B and 7 [5.6, 8.9] times on SmolLM2-135M";

/// Notes on losses in an engine's formats beyond the figures shown, and on how to avoid them.
std::vector<std::string> engine_notes(const MeasuredLevers& measured, const Recommended& found) {
  std::vector<std::string> notes;
  const EngineFacts& engine = kEngines[found.engine];
  if (engine.of.size() > 1 && !measured.written)
    notes.push_back(fmt::format(
        "{} loses more than these stored caches, as it reads the prompt from quantized keys: q4_0 keys lose "
        "{}; kvvalidate.py --written measures it",
        engine.name, kWrittenOverStored));
  if (!found.centering.empty()) notes.push_back(found.centering);
  return notes;
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

std::string over_second_text(const Recommendation& of) {
  if (!of.against_second) return "";
  const Paired& paired = *of.against_second;
  const std::string text = fmt::format("{:.2g}", paired.center());
  if (!std::isfinite(paired.low)) return text;
  return fmt::format("{} [{:.2g}, {:.2g}]", text, paired.lower(), paired.upper());
}

std::string_view verdict(const Recommended& found, const Recommendation& of) {
  if (of.taken > 0) return "simplest, not told apart from the lowest";
  if (of.told_apart() && !of.winner().chosen.between) return "recommended";
  return of.winner().worst ? kBy[found.by].lowest : "lowest on this prompt";
}

std::string chosen_text(const MeasuredLevers& measured, const Candidate& candidate) {
  const auto n_kv = static_cast<std::size_t>(measured.shape.n_kv);
  const std::vector<std::size_t>& levers = candidate.chosen.levers;
  if (const auto& between = candidate.chosen.between)
    return fmt::format("{} (interpolated between {} and {})",
                       measured.levers[levers.front()].text(kept_text(between->keeps.label())),
                       amount_text(measured.levers[levers.front()].keeps),
                       amount_text(measured.levers[between->more].keeps));
  if (candidate.where == Where::everywhere) return measured.levers[levers.front()].text();
  std::map<std::string, Index> formats, policies;
  double least = 1, most = 0, sum = 0;
  bool in_tokens = false;
  const Recipe recipe = recipe_of(measured, candidate.chosen);
  for (std::size_t l = 0; l < recipe.layers.size(); ++l) {
    const std::string& format = measured.levers[levers[l * n_kv]].format;
    ++formats[format == "16" ? "16 bits" : format];
    if (const auto& policy = recipe.layers[l].policy) ++policies[policy->name];
    for (const Budget& budget : recipe.layers[l].budgets) {
      const Index held = measured.held(static_cast<Index>(l), measured.prompts.front().l);
      const double kept = std::min(rest_of(budget.ratio(held)), 1.0);
      in_tokens = in_tokens || budget.tokens;
      least = std::min(least, kept);
      most = std::max(most, kept);
      sum += kept;
    }
  }
  std::string text = shares_text(formats);
  if (policies.empty()) return text;
  text += "; " + shares_text(policies);
  const auto share_text = in_tokens ? rounded_percent : percent;
  if (least == most)
    text += fmt::format(", {} of every head's tokens kept", share_text(least));
  else
    text += fmt::format(", {} to {} of a head's tokens kept, {} on average", share_text(least),
                        share_text(most), rounded_percent(sum / static_cast<double>(levers.size())));
  return in_tokens ? text + fmt::format(" (budgets in tokens: on {})", measured.prompts.front().name) : text;
}

std::string plain_text(const MeasuredLevers& measured, const Recommended& found) {
  const std::ptrdiff_t prompts = std::ssize(measured.prompts);
  std::string text = fmt::format(
      "{}: {}, {} settings measured. {} {}{}\n", measured.model.empty() ? "model" : measured.model,
      counted(prompts, "prompt"), measured.levers.size(),
      measured.written   ? "Nats per token, measured as an engine writes its cache,"
      : measured.in_nats ? "Predicted nats per token"
                         : "Output error (no gradients), mean over heads,",
      prompts > 1 ? "of each prompt if the others choose the setting" : "of the prompt that it is chosen on",
      prompts >= kFewestPrompts ? " [95 %]" : "");
  for (const Recommendation& one : found.recommendations) text += recommendation_text(measured, found, one);
  if (const std::string left = left_out_text(measured, found.engine); !left.empty())
    text += fmt::format("\n{}\n", left);
  for (const std::string& line : engine_notes(measured, found)) text += fmt::format("{}\n", line);
  text += "\nthe same everywhere, at any size, as measured on these prompts\n" +
          cases_text(measured, found.front);
  if (!found.run.empty())
    text += "\nrecipes as they were run, all heads at once\n" + cases_text(measured, found.run);
  if (found.kl_cases > 0)
    text += fmt::format("true KL is {} of what is predicted ({} cases)\n", mean_text(found.kl_over_predicted),
                        found.kl_cases);
  if (prompts < kFewestPrompts)
    text += fmt::format("measure more prompts: fewer than {} have no interval\n", kFewestPrompts);
  if (!measured.in_nats)
    text +=
        "output error can misorder ways of different kinds, by tens of times in nats: capture with "
        "--gradients, or validate in the model before you deploy\n";
  return text;
}

Json json_of(const MeasuredLevers& measured, const Recommended& found) {
  Json json = {{"program", "kvreplay"},
               {"model", measured.model},
               {"prompts", names_of_prompts(measured)},
               {"ways", measured.levers.size()},
               {"unit", measured.written   ? "nats a token, written"
                        : measured.in_nats ? "nats a token, predicted"
                                           : "output error"},
               {"for", kEngines[found.engine].name},
               {"by", kBy[found.by].name}};
  if (found.context) json.update({{"context", *found.context}, {"batch", found.batch}});
  Json& all = json["recommendations"] = Json::array();
  for (const Recommendation& one : found.recommendations) {
    Json candidates = Json::array();
    for (const Candidate& candidate : one.candidates)
      candidates.push_back(candidate_json(measured, candidate));
    all.push_back({{"bytes", one.memory.text}, {"share", one.share}, {"candidates", candidates}});
    if (!one.candidates.empty()) all.back()["taken"] = way_of(one.winner().use, one.winner().where);
    if (one.against_second) {
      all.back()["first_over_second"] = pair_json(*one.against_second);
      all.back()["told_apart"] = one.told_apart();
    }
    if (one.smallest)
      all.back()["smallest"] = {{"text", one.smallest->text},
                                {"share", one.smallest->share},
                                {"bytes", one.smallest->bytes},
                                {"to_type", one.smallest->to_type}};
    if (one.prompts_needed) all.back()["prompts_needed"] = *one.prompts_needed;
    if (one.candidates.empty()) continue;
    if (const std::string how =
            engine_flags(measured, found.engine, recipe_of(measured, one.winner().chosen));
        !how.empty())
      all.back()["told"] = how;
  }
  json["left_out"] = left_out_text(measured, found.engine);
  if (const auto notes = engine_notes(measured, found); !notes.empty()) json["engine_notes"] = notes;
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
  if (found.context) json["chosen"]["context"] = *found.context;
  json["chosen"].update(candidate_json(measured, candidate));
  if (&candidate == &of.candidates.front() && of.against_second)
    json["chosen"]["over_runner_up"] = pair_json(*of.against_second);
  if (const std::string how = engine_flags(measured, found.engine, recipe); !how.empty())
    json["chosen"]["told"] = how;
  return json;
}

}  // namespace kvreplay::recommend
