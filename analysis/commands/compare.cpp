#include "analysis/results/compare.hpp"

#include "analysis/commands/commands.hpp"
#include "analysis/report/report.hpp"
#include "analysis/results/result_folder.hpp"
#include "data/atomic_file.hpp"
#include "data/console.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <limits>

namespace kvreplay {

namespace compare_option {
constexpr OptionFacts out{"out", "DIR", "Write compare_<table>.csv with every figure, and compare.md, too"},
    html{"html", "FILE.html", "Write it as one page, too; its figures go to a folder beside it"},
    force{"force", "", "Replace the comparison that --out holds"},
    top{"top", "N", "Show the N largest differences of every kind of figure", "", 1},
    all{"all", "", "Show all of them"};
}  // namespace compare_option

namespace {

namespace fs = std::filesystem;

/// "semantics=paper" and the like.
KeyFilter parse_filter(const std::vector<std::string>& list, const OptionFacts& option) {
  KeyFilter filter;
  for (const std::string& item : list) {
    const auto equals = item.find('=');
    if (equals == std::string::npos || equals == 0)
      throw OptionError(option, "KEY=VALUE, as semantics=paper", fmt::format("'{}'", item));
    if (!filter.emplace(item.substr(0, equals), item.substr(equals + 1)).second)
      throw OptionError(option, fmt::format("one value of {}", item.substr(0, equals)), "several");
  }
  return filter;
}

bool is_comparison_file(const std::string& name) {
  return name == "compare.md" || (name.starts_with("compare_") && name.ends_with(".csv"));
}

bool is_same(const fs::path& a, const fs::path& b) {
  std::error_code none;
  return fs::equivalent(a, b, none);
}

/// Makes way for a comparison in `folder`; InputError where it holds anything else, or one that is to stay.
/// `page` and its figures may lie there, too.
void make_way(const fs::path& folder, bool replace, const report::ReportPlace& page) {
  std::error_code error;
  if (!fs::exists(folder, error)) return;
  if (!fs::is_directory(folder, error)) throw InputError(folder.string(), "a folder to write to", "a file");
  std::vector<fs::path> old;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (is_same(entry.path(), page.page) || is_same(entry.path(), page.figures)) continue;
    const std::string name = entry.path().filename().string();
    if (!is_comparison_file(name) && !AtomicFile::is_temporary(name))
      throw InputError(folder.string(), "a new or empty folder, or one of a comparison", "other files");
    old.push_back(entry.path());
  }
  if (error) throw InputError(fmt::format("{}: {}", folder.string(), error.message()));
  if (!old.empty() && !replace)
    throw InputError(fmt::format("{}: already holds a comparison; --force replaces it", folder.string()));
  for (const fs::path& path : old)
    if (!fs::remove(path, error) && error)
      throw InputError(fmt::format("{}: {}", path.string(), error.message()));
}

/// Where a comparison goes.
struct Shown {
  std::string a, b;
  std::size_t most;  ///< differences of a kind
  std::string out, html;
  bool force;
};

template <class Comparison>
void show(const Comparison& comparison, const Shown& shown, const CommonOptions& output) {
  const auto& [a, b, most, out, html, force] = shown;
  const report::ReportPlace place = html.empty() ? report::ReportPlace() : report::report_place(html);
  if (!out.empty()) {
    make_way(out, force, place);
    write_csv(comparison, out);
    write_file(fs::path(out) / "compare.md", markdown_text(comparison, most));
  }
  if (!html.empty()) report::write_report(report::make_page(comparison, most), place);
  if (output.json) {
    nlohmann::ordered_json json = {{"program", "kvreplay"}};
    if (!html.empty()) json["page"] = html;
    json.update(json_of(comparison));
    print_json(json);
  } else if (!output.quiet) {
    say("{}", plain_text(comparison, most));
    if (!out.empty()) say("\nevery figure: {}\n", displayable((fs::path(out) / "compare_*.csv").string()));
    if (!html.empty()) say("{}page: {}\n", out.empty() ? "\n" : "", displayable(html));
    say_next({html.empty() ? shell_line({"kvreplay", "compare", a, b, "--html", "compared.html"})
                           : open_command(html)});
  }
}

}  // namespace

int run_compare(const Arguments& arguments) {
  const auto app = make_app(
      "compare",
      "Shows two result folders side by side: what was run differently, how far every figure is from the\n"
      "other's, for the model and over its heads, and which policies and scores change places. Of two "
      "folders over\n"
      "several dumps: what differs prompt by prompt, and whether more prompts would show it too.",
      "kvreplay compare results/llama results/qwen\n"
      "kvreplay compare results/f32 results/tensor --out results/compared\n"
      "kvreplay compare results/llama results/qwen --html llama-qwen.html\n"
      "kvreplay compare DIR DIR --left semantics=paper --right semantics=kvpress");
  std::string a, b, out, html;
  std::vector<std::string> left, right;
  Index top = 12;
  bool all = false, force = false;
  CommonOptions output;
  app->add_folders("A", a, "A finished result folder");
  app->add_folders("B", b, "Another one, or the same");
  app->add({bind_option(compare_option::out, out), bind_option(compare_option::html, html),
            bind_option(compare_option::force, force), bind_option(compare_option::left, left),
            bind_option(compare_option::right, right), bind_option(compare_option::top, top),
            bind_option(compare_option::all, all).excluding(compare_option::top)});
  app->option(compare_option::out)->check(folder_name());
  app->option(compare_option::html)->check(file_ending({".html", ".htm"}));
  output.add_output(*app);
  if (parse(*app, arguments)) return 0;
  const KeyFilter left_filter = parse_filter(left, compare_option::left),
                  right_filter = parse_filter(right, compare_option::right);
  const Shown shown{a,   b,    all ? std::numeric_limits<std::size_t>::max() : static_cast<std::size_t>(top),
                    out, html, force};
  for (const std::string& folder : {a, b}) ResultFolder::require_as_written(folder);
  const bool over_dumps = OverDumpsReader::is_over_dumps(a);
  if (over_dumps != OverDumpsReader::is_over_dumps(b))
    throw InputError(over_dumps ? b : a, "results over several dumps, as the other folder has",
                     "results of one");
  if (over_dumps)
    show(compare(OverDumpsReader(a), left_filter, OverDumpsReader(b), right_filter), shown, output);
  else
    show(compare(ResultReader(a), left_filter, ResultReader(b), right_filter), shown, output);
  return 0;
}

}  // namespace kvreplay
