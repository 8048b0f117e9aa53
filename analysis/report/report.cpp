#include "analysis/report/report.hpp"

#include "analysis/findings/findings.hpp"
#include "analysis/report/sections.hpp"
#include "analysis/results/csv.hpp"
#include "data/atomic_file.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace kvreplay::report {
namespace {

namespace fs = std::filesystem;

constexpr const char* kList = "figures.csv";  // marks the folder as a report's, and says what is in it

/// The folder of figures as a report finds it: new, empty or an earlier report's. Its files.
std::vector<fs::path> files_of_before(const fs::path& folder) {
  std::vector<fs::path> files;
  bool ours = true;  // what a report that was killed before its list was written leaves
  if (!fs::exists(folder)) return files;
  if (!fs::is_directory(folder)) throw InputError(folder.string(), "a folder of figures", "a file");
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string(), kind = entry.path().extension().string();
    const bool left = AtomicFile::is_temporary(name);
    if (entry.is_directory() || (!left && kind != ".svg" && kind != ".png" && kind != ".csv"))
      throw InputError(folder.string(), "figures of an earlier report", name);
    ours &= left;
    files.push_back(entry.path());
  }
  if (!ours && !fs::exists(folder / kList))
    throw InputError(folder.string(), "a new or empty folder, or one of a report's figures", "other files");
  std::ranges::sort(files);
  return files;
}

/// The figure that shows a finding, and the section that it is in.
struct Seen {
  const char *figure, *section;
};
Seen seen(const Finding& finding) {
  switch (finding.kind) {
    case FindingKind::head:
      return finding.place.token ? Seen{"scatter", "tokens"} : Seen{"head-map", "heads"};
    case FindingKind::future:
      return {"scores", "overview"};
    case FindingKind::policy:
      return {"policies", "overview"};
    case FindingKind::layer:
      return {"error-by-layer", "evictions"};
    case FindingKind::compensation:
    case FindingKind::cost:
      return {"methods", "compensation"};
    case FindingKind::budgets:
      return {"shares", "overview"};
    case FindingKind::channels:
      return {"pruning", "overview"};
    case FindingKind::sum:
      return {"error-by-ratio", "channels"};
  }
  return {"", ""};
}

/// List entries with which a plot, the scatter plot or the map of heads, shows a finding's place.
std::vector<std::pair<std::string, std::string>> picked_of(const FindingPlace& place, bool scatter) {
  std::vector<std::pair<std::string, std::string>> picked;
  if (!scatter) picked = {{"figure", kind_of_map(Table::agreement)}, {"metric", "spearman"}};
  for (const auto& [column, value] : place.keys) {
    if (column == "score") picked.emplace_back(scatter ? "score" : "of", value);
    if (column == "reference") picked.emplace_back(scatter ? "exact error" : "against or on", value);
  }
  return picked;
}

std::vector<LinkedSentence> findings_in(const Tables& tables, const std::vector<Section>& sections) {
  std::vector<LinkedSentence> sentences;
  for (Finding& finding : findings_of(tables)) {
    const auto at = seen(finding);
    const bool drawn = std::ranges::any_of(sections, [&](const Section& one) {
      return std::ranges::any_of(one.figures, [&](const Figure& its) { return its.name == at.figure; });
    });
    LinkedSentence sentence{std::move(finding.text), drawn ? at.figure : at.section};
    if (drawn && finding.kind == FindingKind::head && finding.place.layer && finding.place.kv_head) {
      sentence.head = {*finding.place.layer, *finding.place.kv_head};
      sentence.token = finding.place.token;
      sentence.picked = picked_of(finding.place, finding.place.token.has_value());
    }
    sentences.push_back(std::move(sentence));
  }
  return sentences;
}

}  // namespace

Page make_page(const ResultReader& results, const std::string& title) {
  const Tables tables(results);
  Page page;
  const auto& dump = results.summary()["dump"];
  const std::string model = text_in(dump, "model");
  page.title = !title.empty() ? title : model.empty() ? "kvreplay results" : model;
  page.lead = lead_of(results);
  page.facts = facts_of(results);
  if (!title.empty() && !model.empty()) page.facts.insert(page.facts.begin(), {"model", model});
  page.remarks = remarks_of(results);
  if (auto prompt = prompt_section(tables)) page.sections.push_back(std::move(*prompt));
  for (Section (*section)(const Tables&) :
       {overview_section, head_map_section, token_section, eviction_section, compensation_section,
        budget_section, channel_section, validation_section, claim_section, run_section})
    page.sections.push_back(section(tables));
  page.findings = findings_in(tables, page.sections);
  page.results = results.folder();
  page.kv_heads = results.shape().n_kv;
  page.tokens = results.shape().l;
  return page;
}

ReportPlace report_place(const fs::path& page) {
  const std::string stem = page.stem().string();
  return {page, page.parent_path() / (stem == "index" ? "figures" : stem + "-figures")};
}

void write_report(const Page& page, const ReportPlace& place) {
  try {
    const std::vector<fs::path> before = files_of_before(place.figures);
    CsvTable list("figure,file");
    for (const Section& section : page.sections)
      for (const Figure& figure : section.figures)
        for (const FigureFile& file : figure.files) list.row(figure.name, file.name);
    write_file(place.figures / kList, list.take());
    std::set<std::string> written{kList};
    for (const Section& section : page.sections)
      for (const Figure& figure : section.figures)
        for (const FigureFile& file : figure.files) {
          write_file(place.figures / file.name, file.bytes);
          written.insert(file.name);
        }
    std::string results;
    if (!page.results.empty()) {
      const fs::path from = fs::absolute(place.page).parent_path().lexically_normal();
      results = fs::absolute(page.results).lexically_normal().lexically_relative(from).generic_string();
    }
    write_output(place.page, html_of(page, place.figures.filename().string(), results));
    for (const fs::path& old : before)
      if (!written.contains(old.filename().string())) fs::remove(old);
  } catch (const fs::filesystem_error& error) {
    throw InputError(fmt::format("{}: {}", error.path1().string(), error.code().message()));
  }
}

}  // namespace kvreplay::report
