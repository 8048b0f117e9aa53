#include "analysis/report/report.hpp"

#include "analysis/commands/commands.hpp"
#include "analysis/results/result_folder.hpp"
#include "data/console.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <filesystem>

namespace kvreplay {
namespace report_option {
constexpr OptionFacts out{"out", "FILE.html", "The page; its figures go to a folder beside it",
                          "DIR/report/index.html"},
    title{"title", "TEXT", "The page's title", "the model"};
}  // namespace report_option

int run_report(const Arguments& arguments) {
  const auto app = make_app(
      "report",
      "Makes one HTML file of a result folder: what was run, how good each approximation is, and every "
      "figure with a sentence on how to read it. It needs no network, and no other file.\n"
      "Of a folder over several dumps: the main figures' means with their 95 % confidence intervals. Of two "
      "folders side by side: kvreplay compare A B --html FILE.html",
      "kvreplay report results/pystdlib\n"
      "kvreplay report results/pystdlib --out pystdlib.html --title \"Before the fix\"");
  std::string folder, out, title;
  CommonOptions output;
  app->add_folders("DIR", folder, "The result folder, of one dump or over several");
  app->add({bind_option(report_option::out, out), bind_option(report_option::title, title)});
  app->option(report_option::out)->check(file_ending({".html", ".htm"}));
  output.add_output(*app);
  if (parse(*app, arguments)) return 0;

  ResultFolder::require_as_written(folder);
  const std::filesystem::path page_path =
      out.empty() ? std::filesystem::path(folder) / "report" / "index.html" : std::filesystem::path(out);
  const report::Page page = OverDumpsReader::is_over_dumps(folder)
                                ? report::make_page(OverDumpsReader(folder), title)
                                : report::make_page(ResultReader(folder), title);
  const report::ReportPlace place = report::report_place(page_path);
  report::write_report(page, place);

  const auto bytes = static_cast<double>(std::filesystem::file_size(place.page));
  std::size_t figures = 0;
  for (const report::Section& section : page.sections) figures += section.figures.size();
  if (output.json)
    print_json({{"page", place.page.string()},
                {"figures", place.figures.string()},
                {"figure_count", figures},
                {"bytes", static_cast<std::size_t>(bytes)}});
  else if (!output.quiet) {
    say("report: {} ({:.1f} MB, {})\nfigures and their data: {}\n", displayable(place.page.string()),
        bytes / 1e6, counted(static_cast<Index>(figures), "figure"), displayable(place.figures.string()));
    say_next({open_command(place.page.string()), shell_line({"kvreplay", "view", folder})});
  }
  return 0;
}

}  // namespace kvreplay
