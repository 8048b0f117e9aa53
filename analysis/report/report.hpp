#pragma once

#include "analysis/report/figure.hpp"
#include "analysis/results/compare.hpp"
#include "analysis/results/over_dumps.hpp"
#include "analysis/results/result_reader.hpp"

#include <cstddef>
#include <filesystem>
#include <string>

namespace kvreplay::report {

/// Everything that the page shows, from the folder; the text of tokens from its dump, where that is there. An
/// empty title: the model's name.
Page make_page(const ResultReader& results, const std::string& title);
/// What the page shows of a folder over several dumps: the main figures with their intervals over the dumps.
Page make_page(const OverDumpsReader& results, const std::string& title);

/// Where a report goes: the page, and beside it the folder of its figures' files, which is the report's own:
/// "figures" beside index.html, "<name>-figures" beside <name>.html.
struct ReportPlace {
  std::filesystem::path page, figures;
};
ReportPlace report_place(const std::filesystem::path& page);

/// Writes the figures' files and then the page; a report that was there is replaced, file by file, each whole
/// or not at all. Throws InputError where something cannot be written, or the folder of figures holds what no
/// report put there.
void write_report(const Page& page, const ReportPlace& place);

/// Two result folders side by side: how the runs differ, then for every table of figures that differ pictures
/// of A against B and what plain_text() says, with the `most` largest differences of every block.
Page make_page(const FolderComparison& comparison, std::size_t most);
/// Two folders over several dumps side by side, in words and tables.
Page make_page(const ComparisonOverPrompts& comparison, std::size_t most);

}  // namespace kvreplay::report
