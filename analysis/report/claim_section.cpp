#include "analysis/claims/claim.hpp"
#include "analysis/report/sections.hpp"
#include "analysis/report/text.hpp"
#include "analysis/results/csv.hpp"
#include "analysis/results/figures.hpp"

#include <fmt/format.h>

#include <cmath>

namespace kvreplay::report {
namespace {

constexpr std::size_t kMostPrompts = 10;  // prompts whose effects stand in the table

const char* class_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::none:
      break;
    case Verdict::holds:
      return " class=\"holds-yes\"";
    case Verdict::fails:
      return " class=\"holds-no\"";
    case Verdict::alike:
    case Verdict::undecided:
      return " class=\"holds-part\"";
  }
  return "";
}

/// The effects prompt by prompt.
std::string dumps_text(const ClaimEffect& effect) {
  if (effect.dumps.size() > kMostPrompts) return "";
  std::vector<std::string> texts;
  for (const double value : effect.dumps) texts.push_back(effect.text_of(value));
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string row_of(const ClaimEffect& effect) {
  const bool one = effect.dumps.size() == 1;
  const std::string layers = std::isnan(effect.layers) ? "" : fmt::format("{:.0f} %", 100 * effect.layers);
  std::string row = fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td>", escaped(effect.setting),
                                (one ? "one prompt: " : "") + effect.text(), layers);
  if (!one)
    row += fmt::format("<td>{}</td><td{}>{}</td><td>{}</td>", effect.prompts, class_of(effect.verdict()),
                       effect.verdict_text(), dumps_text(effect));
  return row + "</tr>\n";
}

std::string heading_of(const ClaimFacts& claim, bool one) {
  return fmt::format("<tr><th scope=\"rowgroup\" colspan=\"{}\">{} {}: {} ({})</th></tr>\n", one ? 3 : 6,
                     escaped(claim.paper), escaped(claim.figure), escaped(claim.sentence),
                     escaped(claimed_text(claim)));
}

std::string csv_of(const std::vector<ClaimEffect>& effects, const std::vector<std::string>& dumps) {
  CsvTable csv("id,paper,figure,claim,claimed,setting,prompts,effect,low,high,verdict,layers," +
               joined(dumps));
  for (const ClaimEffect& effect : effects) {
    const ClaimFacts& claim = *effect.claim;
    csv.add(claim.id).add(claim.paper).add(claim.figure).add(claim.sentence).add(claimed_text(claim));
    csv.add(effect.setting).add(effect.prompts).add(effect.mean).add(effect.low).add(effect.high);
    csv.add(effect.verdict_text()).add(effect.layers);
    for (const double value : effect.dumps) csv.add(value);
    csv.end_row();
  }
  return csv.take();
}

constexpr const char* kEffects =
    "An effect is formed within a prompt: of losses and errors the ratio of the two sides, of shares their "
    "difference, of ranks the correlation. \"Layers\" are those, of the ones that differ, in which the first "
    "side is better. ";
constexpr const char* kOnePrompt = "One prompt decides nothing; a run over several dumps gives verdicts.";
constexpr const char* kVerdicts =
    "It is averaged over the prompts (ratios by their logarithms, correlations by Fisher's z) with its 95 % "
    "interval by Student's t. A claim holds where the interval lies on its side, and does not where it lies "
    "on the other; an interval that holds no effect says how large one could be. Below four prompts nothing "
    "is decided. A verdict speaks of this model and these prompts, each interval for itself.";

Section section_of(const std::vector<ClaimEffect>& effects, const std::vector<std::string>& dumps) {
  Section section{"claims", "What papers claim, replayed", "", {}, ""};
  const bool one = dumps.size() == 1;
  std::string rows, undecided;
  for (const ClaimFacts& claim : claim_table()) {
    const std::size_t before = rows.size();
    for (const ClaimEffect& effect : effects)
      if (effect.claim == &claim)
        rows += (rows.size() == before ? heading_of(claim, one) : "") + row_of(effect);
    if (rows.size() == before)
      undecided += fmt::format("<li>{} {}: {}: needs {}</li>", escaped(claim.paper), escaped(claim.figure),
                               escaped(claim.sentence), escaped(claim.needs));
  }
  if (rows.empty()) {
    section.missing = "These results decide none of the claims that this report knows.";
  } else {
    Figure figure;
    figure.name = "papers-claims";
    figure.heading = "Claims, their effects and verdicts";
    figure.reading = std::string(kEffects) + (one ? kOnePrompt : kVerdicts);
    std::vector<std::string> headings{"setting", "effect", "layers"};
    if (!one) headings.insert(headings.end(), {"prompts", "verdict", "prompt by prompt"});
    figure.body = table_html(headings, rows, false) + "\n";
    figure.files = {csv_file(figure.name, csv_of(effects, dumps))};
    section.figures.push_back(std::move(figure));
  }
  if (!undecided.empty())
    section.html = fmt::format(
        "<details><summary>Not measured by these results</summary><ul>{}</ul></details>\n", undecided);
  return section;
}

}  // namespace

Section claim_section(const Tables& tables) {
  const std::vector<MeasuredClaim> measured = measured_claims(claim_tables(tables.results));
  return section_of(claim_effects(std::span(&measured, 1)), {"prompt"});
}

Section claims_over_dumps(const OverDumpsReader& results) {
  std::vector<std::vector<MeasuredClaim>> prompts;
  for (std::size_t i = 0; i < results.dumps().size(); ++i) {
    const auto& others = results.left_one_out()[i];
    prompts.push_back(measured_claims(claim_tables(results.dumps()[i], others ? &*others : nullptr)));
  }
  return section_of(claim_effects(prompts), results.names());
}

}  // namespace kvreplay::report
