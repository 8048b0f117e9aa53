#include "analysis/recommend/recommend.hpp"
#include "analysis/report/figure.hpp"
#include "analysis/report/plots.hpp"
#include "analysis/report/sections.hpp"
#include "analysis/report/text.hpp"
#include "analysis/results/kept_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay::report {
namespace {

using recommend::Candidate;
using recommend::MeasuredLevers;
using recommend::Recommendation;
using recommend::Use;
using recommend::Where;

constexpr const char* kReading =
    "What a cache of so many bytes costs, of those that it takes in 16 bits: with a policy and a format for "
    "every layer and a number of tokens for "
    "every head that suit them, and with the same everywhere. Of each prompt it is what the other prompts "
    "choose: what a recipe promises "
    "to a prompt that it has not seen.";

std::string unit(const MeasuredLevers& measured) {
  return measured.in_nats ? "predicted nats a token" : "output error, mean over heads";
}

/// By use the colour, by where the dash.
LineStyle style_of(Use use, Where where) {
  return {static_cast<int>(use), where == Where::each ? 0 : 1, static_cast<int>(use)};
}

/// A line a way over the bytes.
LinePlot by_bytes(const MeasuredLevers& measured, const recommend::Recommended& found) {
  LinePlot plot;
  plot.title = fmt::format("{} over bytes", unit(measured));
  std::vector<double> all;
  for (const Recommendation& one : found.recommendations) plot.at.push_back(one.share);
  for (const Where where : {Where::each, Where::everywhere})
    for (const Use use : recommend::kUses.all()) {
      LinePlot::Line line{recommend::way_text(use, where), style_of(use, where), {}};
      for (const Recommendation& one : found.recommendations) {
        const Candidate* const candidate = candidate_of(one, use, where);
        line.values.push_back(candidate == nullptr ? kNan : candidate->nats.center());
      }
      all.insert(all.end(), line.values.begin(), line.values.end());
      if (std::ranges::any_of(line.values, [](double value) { return std::isfinite(value); }))
        plot.lines.push_back(std::move(line));
    }
  plot.x = log_axis("bytes, of those in 16 bits", plot.at);
  plot.y = log_axis(unit(measured), all);
  plot.bridged = true;
  return plot;
}

/// A row a way within so many bytes, with a dot a prompt.
IntervalPlot by_prompt(const MeasuredLevers& measured, const Recommendation& one) {
  IntervalPlot plot;
  plot.title = fmt::format("{} within {} of the bytes", unit(measured), percent(one.share));
  for (const recommend::MeasuredPrompt& prompt : measured.prompts) plot.samples.push_back(prompt.name);
  for (const Candidate& candidate : one.candidates)
    plot.rows.push_back({recommend::way_text(candidate.use, candidate.where),
                         style_of(candidate.use, candidate.where), candidate.nats.n, candidate.nats.center(),
                         candidate.nats.low, candidate.nats.high, candidate.held_out});
  order_rows(plot, Better::smaller, unit(measured), true);
  return plot;
}

std::string rows_html(const MeasuredLevers& measured, const recommend::Recommended& found) {
  std::string rows;
  for (const Recommendation& one : found.recommendations) {
    if (one.candidates.empty()) continue;
    const Candidate& best = one.winner();
    rows += fmt::format(
        "<tr><th "
        "scope=\"row\">{0}</th><td>{1}</td><td>{2}</td><td>{3}</td><td>{4}<details><summary>recipe.json</"
        "summary><pre>{5}</pre></details></td></tr>\n",
        escaped(percent(one.share)), escaped(percent(std::round(1000 * best.chosen.bytes) / 1000)),
        escaped(mean_text(best.nats)), escaped(recommend::over_second_text(one)),
        escaped(fmt::format("{}: {}: {}", recommend::verdict(found, one),
                            recommend::way_text(best.use, best.where),
                            recommend::chosen_text(measured, best))),
        escaped(recommend::recipe_json(measured, found, one, best).dump(1)));
  }
  return rows;
}

}  // namespace

std::optional<Section> recipe_section(const OverDumpsReader& results) {
  std::optional<MeasuredLevers> measured;
  try {
    const std::filesystem::path folders[] = {results.folder()};
    measured = recommend::read_levers(folders);
  } catch (const InputError&) {
    return std::nullopt;  // no evictions, or none that recipes can have
  }
  recommend::RecommendOptions options;
  for (const double share : recommend::kShownShares) options.bytes.push_back({share, 0, percent(share)});
  const recommend::Recommended found = recommend::recommend(*measured, options);
  Section section{"which-recipe", "Which recipe within so many bytes?", "", {}, ""};
  LinePlot over_bytes = by_bytes(*measured, found);
  if (over_bytes.lines.empty()) return std::nullopt;
  Variants lines("recipes"), prompts("recipes-by-prompt");
  lines.add({}, std::move(over_bytes));
  for (const Recommendation& one : found.recommendations)
    if (one.candidates.size() > 1 && !one.candidates.front().held_out.empty())
      prompts.add({percent(one.share)}, by_prompt(*measured, one));
  section.figures.push_back(*lines.figure({}, "What a recipe costs, by its bytes", kReading));
  if (auto figure =
          prompts.figure({"within"}, "The same, prompt by prompt",
                         "Ways to spend the same bytes, the best first. Small dots are the prompts, the "
                         "large one is their geometric mean, the bar its 95 % interval."))
    section.figures.push_back(std::move(*figure));
  section.html = table_html({"within", "bytes", unit(*measured), "over the runner-up", "taken"},
                            rows_html(*measured, found), false);
  return section;
}

}  // namespace kvreplay::report
