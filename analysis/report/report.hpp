#pragma once

#include "analysis/report/figure.hpp"
#include "analysis/results/compare.hpp"
#include "analysis/results/over_dumps.hpp"
#include "analysis/results/result_reader.hpp"

#include <cstddef>
#include <filesystem>
#include <string>

namespace kvreplay::report {

/// Page of one result folder. The text of tokens comes from the folder's dump, if it exists. Default title:
/// the model's name.
Page make_page(const ResultReader& results, const std::string& title);
/// Page of a folder over several dumps: the main metrics with their intervals over the dumps.
Page make_page(const OverDumpsReader& results, const std::string& title);

/// Paths of a report: the page, and next to it the report's own folder for its figures' files: "figures" next
/// to index.html, "<name>-figures" next to <name>.html.
struct ReportPlace {
  std::filesystem::path page, figures;
};
ReportPlace report_place(const std::filesystem::path& page);

/// Writes the plots' files and then the page. An earlier report is replaced file by file, each whole or not
/// at all. Throws InputError if a file cannot be written, or the folder of plots contains files of another
/// origin.
void write_report(const Page& page, const ReportPlace& place);

/// Two result folders side by side: the differences of the runs; then for every table of metrics that differ,
/// plots of A against B and the text of plain_text() with the `most` largest differences of every block.
Page make_page(const FolderComparison& comparison, std::size_t most);
/// Two folders over several dumps side by side, in words and tables.
Page make_page(const ComparisonOverPrompts& comparison, std::size_t most);

}  // namespace kvreplay::report
