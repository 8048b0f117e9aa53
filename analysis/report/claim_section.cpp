#include "analysis/report/claims.hpp"
#include "analysis/report/text.hpp"

#include <fmt/format.h>

namespace kvreplay::report {

Section claim_section(const Tables& tables) {
  Section section{"claims", "What papers claim, replayed", "", {}, ""};
  std::string rows, undecided;
  for (const Claim& claim : claims_of(tables)) {
    if (claim.verdict.empty()) {
      undecided += fmt::format("<li>{}: {}</li>", escaped(claim.text), escaped(claim.measured));
      continue;
    }
    const char* const kind = claim.verdict == "yes" ? "yes" : claim.verdict == "no" ? "no" : "part";
    rows += fmt::format("<tr><td>{}</td><td>{}</td><td class=\"holds-{}\">{}</td></tr>\n",
                        escaped(claim.text), escaped(claim.measured), kind, escaped(claim.verdict));
  }
  if (rows.empty())
    section.missing = "These results decide none of the claims that this report knows.";
  else
    section.html =
        "<p>Decided by the numbers of these results alone, one model and one prompt: a \"no\" refutes a "
        "claim's "
        "generality, not its paper. Comparisons between equal numbers do not count.</p>\n<div "
        "class=\"scroll\"><table>"
        "<thead><tr><th>claim</th><th>measured</th><th>holds here</th></tr></thead><tbody>\n" +
        rows + "</tbody></table></div>\n";
  if (!undecided.empty())
    section.html += fmt::format(
        "<details><summary>Not decided by these results</summary><ul>{}</ul></details>\n", undecided);
  return section;
}

}  // namespace kvreplay::report
