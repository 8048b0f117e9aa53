#include "analysis/report/report.hpp"
#include "analysis/report/sections.hpp"
#include "analysis/report/text.hpp"
#include "analysis/results/dump_set.hpp"
#include "analysis/results/how_large.hpp"
#include "analysis/results/standings.hpp"
#include "analysis/results/student.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay::report {
namespace {

constexpr std::size_t kOpenDumps = 6;  // more would push the figures off the first screen

/// "61 tokens", "47 to 61 tokens"
std::string range_text(const std::vector<Index>& values, const char* one) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return *least == *most ? counted(*most, one) : fmt::format("{} to {}", *least, counted(*most, one));
}

std::string lead_over(const OverDumpsReader& results) {
  const DumpShape& s = results.dumps().front().shape();
  std::vector<Index> candidates, steps;
  for (const ResultReader& dump : results.dumps()) {
    candidates.push_back(dump.shape().l);
    steps.push_back(dump.shape().T - dump.shape().l);
  }
  return fmt::format("{} of one model: {} x {}, {} to each, head dimension {}; prompts of {}, {}",
                     counted(std::ssize(results.dumps()), "dump"), counted(s.layers, "layer"),
                     counted(s.n_kv, "KV head"), counted(s.n_q / s.n_kv, "query head"), s.d,
                     range_text(candidates, "token"), range_text(steps, "decoding step"));
}

/// What is known of every dump's run and alike in all.
std::vector<std::pair<std::string, std::string>> common_facts(const OverDumpsReader& results) {
  auto facts = facts_of(results.dumps().front());
  for (const ResultReader& dump : results.dumps()) {
    const auto its = facts_of(dump);
    std::erase_if(facts,
                  [&](const auto& fact) { return std::find(its.begin(), its.end(), fact) == its.end(); });
  }
  return facts;
}

/// The evictions of every dump, compared within it.
std::vector<JudgedCase> judged_over_dumps(const OverDumpsReader& results) {
  std::vector<JudgedCase> all;
  for (std::size_t i = 0; i < results.dumps().size(); ++i)
    for (JudgedCase& one : judged_cases(results.dumps()[i])) {
      one.setting += fmt::format(" {}", i);
      all.push_back(std::move(one));
    }
  return all;
}

/// The notes of all dumps, each once, those of most dumps first; with their number where it is not that of
/// all.
std::vector<std::string> common_remarks(const OverDumpsReader& results) {
  std::vector<std::pair<std::string, std::size_t>> counts;
  for (const ResultReader& dump : results.dumps())
    for (std::string& remark : remarks_of(dump)) {
      const auto known = std::find_if(counts.begin(), counts.end(),
                                      [&](const auto& count) { return count.first == remark; });
      if (known == counts.end())
        counts.emplace_back(std::move(remark), 1);
      else
        ++known->second;
    }
  std::stable_sort(counts.begin(), counts.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  const auto n = std::ssize(results.dumps());
  std::vector<std::string> remarks = {
      fmt::format("Intervals are 95 % confidence intervals of the mean over the {} dumps, by Student's t: "
                  "over dumps, never over heads, which are no independent sample; of errors, which are "
                  "positive, they are of the geometric mean, on the scale of ratios, of rank correlations on "
                  "that of Fisher's z, and none goes beyond what the figure can be.{}",
                  n,
                  n < kFewestPrompts    ? " Fewer than three dumps have none."
                  : n == kFewestPrompts ? " Of so few dumps they are wide."
                                        : ""),
      how_large(judged_over_dumps(results))};
  for (const auto& [remark, count] : counts)
    remarks.push_back(static_cast<std::ptrdiff_t>(count) == n
                          ? remark
                          : fmt::format("{} ({} of {} dumps)", remark, count, n));
  return remarks;
}

Section dumps_section(const OverDumpsReader& results) {
  Section section{"overview", "What was run over", "", {}, ""};
  std::string rows;
  for (std::size_t i = 0; i < results.dumps().size(); ++i) {
    const ResultReader& dump = results.dumps()[i];
    const auto& its = dump.summary()["dump"];
    rows += fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                        escaped(results.names()[i]), escaped(text_in(its, "model")), dump.shape().l,
                        dump.shape().T - dump.shape().l, escaped(text_in(its, "fingerprint")));
  }
  const std::string table = fmt::format(
      "<div class=\"scroll\"><table><thead><tr><th>dump</th><th>model</th><th>prompt tokens</th><th>decoding "
      "steps</th><th>fingerprint</th></tr></thead><tbody>\n{}</tbody></table></div>\n",
      rows);
  section.html =
      results.dumps().size() <= kOpenDumps
          ? table
          : fmt::format("<details><summary>{} dumps</summary>{}</details>\n", results.dumps().size(), table);
  return section;
}

Section settings_section(const OverDumpsReader& results) {
  return {"run", "How it was run", "", {}, settings_table(results.summary(), {"options"})};
}

}  // namespace

Page make_page(const OverDumpsReader& results, const std::string& title) {
  Page page;
  const std::string first = text_in(results.dumps().front().summary()["dump"], "model");
  const bool alike = std::all_of(
      results.dumps().begin(), results.dumps().end(),
      [&](const ResultReader& dump) { return text_in(dump.summary()["dump"], "model") == first; });
  const std::string model = alike ? first : model_of(first);
  page.title = !title.empty() ? title : model.empty() ? "kvreplay results" : model;
  page.lead = lead_over(results);
  page.facts = common_facts(results);
  if (!title.empty() && !model.empty()) page.facts.insert(page.facts.begin(), {"model", model});
  page.remarks = common_remarks(results);
  for (Section (*section)(const OverDumpsReader&) :
       {better_section, dumps_section, figures_over_dumps, claims_over_dumps, settings_section})
    page.sections.push_back(section(results));
  return page;
}

}  // namespace kvreplay::report
