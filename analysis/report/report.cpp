#include "analysis/report/report.hpp"

#include "analysis/csv.hpp"
#include "analysis/report/sections.hpp"
#include "data/atomic_file.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <system_error>

namespace kvreplay::report {
namespace {

namespace fs = std::filesystem;

constexpr const char* kList = "figures.csv";  // marks the folder as a report's, and says what is in it

std::string counted(Index n, const char* one) { return fmt::format("{} {}{}", n, one, n == 1 ? "" : "s"); }

std::string text_in(const nlohmann::ordered_json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

nlohmann::ordered_json run_json(const ResultReader& results) {
  try {
    const std::string text = file_text(results.folder() / "run.json", std::uintmax_t{1} << 24);
    auto json = nlohmann::ordered_json::parse(text, nullptr, false);
    return json.is_object() ? json : nlohmann::ordered_json::object();
  } catch (const InputError&) {
    return nlohmann::ordered_json::object();  // results are complete without run.json
  }
}

std::vector<std::pair<std::string, std::string>> facts_of(const ResultReader& results) {
  const auto& summary = results.summary();
  const auto run = run_json(results);
  std::vector<std::pair<std::string, std::string>> facts;
  const auto add = [&](const char* name, std::string value) {
    if (!value.empty()) facts.emplace_back(name, std::move(value));
  };
  std::string commands, window;
  const auto options = summary.find("options");
  if (options != summary.end() && options->is_object())
    for (const auto& [name, given] : options->items()) {
      commands += fmt::format("{}{}", commands.empty() ? "" : ", ", name);
      if (window.empty() && given.is_object()) window = text_in(given, "window");
    }
  add("analyses", commands);
  if (!window.empty()) add("window", fmt::format("last {} prompt queries", window));
  add("precision", text_in(summary, "precision"));
  add("computed on", text_in(run, "backend"));
  add("host", text_in(run, "host"));
  add("started", text_in(run, "started"));
  if (const std::string version = text_in(run, "version"); !version.empty()) add("by", "kvreplay " + version);
  return facts;
}

std::string lead_of(const ResultReader& results) {
  const DumpShape& s = results.shape();
  const auto computed = static_cast<Index>(results.layers().size());
  std::string layers = computed == s.layers ? counted(s.layers, "layer")
                                            : fmt::format("{} of {}", computed, counted(s.layers, "layer"));
  return fmt::format("{} x {}, {} to each, head dimension {}; prompt of {}, {}", layers,
                     counted(s.n_kv, "KV head"), counted(s.n_q / s.n_kv, "query head"), s.d,
                     counted(s.l, "token"), counted(s.T - s.l, "decoding step"));
}

std::vector<std::string> remarks_of(const ResultReader& results) {
  std::vector<std::string> remarks;
  const auto add = [&](std::string remark) {
    if (std::find(remarks.begin(), remarks.end(), remark) == remarks.end())
      remarks.push_back(std::move(remark));
  };
  const auto& summary = results.summary();
  if (const auto notes = summary.find("notes"); notes != summary.end() && notes->is_array())
    for (const auto& note : *notes)
      if (note.is_string()) add(note.get<std::string>());
  if (const auto left = summary.find("left_out"); left != summary.end() && left->is_array())
    for (const auto& one : *left)
      if (one.is_object()) add(fmt::format("left out: {}: {}", text_in(one, "what"), text_in(one, "why")));
  return remarks;
}

/// The folder of figures as a report finds it: new, empty or an earlier report's. Its files.
std::vector<fs::path> files_of_before(const fs::path& folder) {
  std::vector<fs::path> files;
  if (!fs::exists(folder)) return files;
  if (!fs::is_directory(folder)) throw InputError(folder.string(), "a folder of figures", "a file");
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string kind = entry.path().extension().string();
    const bool figure = kind == ".svg" || kind == ".png" || kind == ".csv" || kind == ".tmp";
    if (!figure || entry.is_directory())
      throw InputError(folder.string(), "figures of an earlier report", entry.path().filename().string());
    files.push_back(entry.path());
  }
  if (!files.empty() && !fs::exists(folder / kList))
    throw InputError(folder.string(), "a new or empty folder, or one of a report's figures", "other files");
  std::sort(files.begin(), files.end());
  return files;
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
  for (Section (*section)(const Tables&) :
       {overview_section, head_map_section, token_section, eviction_section, budget_section, channel_section,
        claim_section, run_section})
    page.sections.push_back(section(tables));
  return page;
}

ReportPlace report_place(const fs::path& page) {
  const std::string stem = page.stem().string();
  return {page, page.parent_path() / (stem == "index" ? "figures" : stem + "-figures")};
}

void write_report(const Page& page, const ReportPlace& place) {
  try {
    const std::vector<fs::path> before = files_of_before(place.figures);
    std::string list = "figure,file\n";
    for (const Section& section : page.sections)
      for (const Figure& figure : section.figures)
        for (const FigureFile& file : figure.files)
          list += fmt::format("{},{}\n", csv_field(figure.name), csv_field(file.name));
    write_file(place.figures / kList, list);
    std::set<std::string> written{kList};
    for (const Section& section : page.sections)
      for (const Figure& figure : section.figures)
        for (const FigureFile& file : figure.files) {
          write_file(place.figures / file.name, file.bytes);
          written.insert(file.name);
        }
    write_file(place.page, html_of(page, place.figures.filename().string()));
    for (const fs::path& old : before)
      if (!written.contains(old.filename().string())) fs::remove(old);
  } catch (const fs::filesystem_error& error) {
    throw InputError(fmt::format("{}: {}", error.path1().string(), error.code().message()));
  }
}

}  // namespace kvreplay::report
