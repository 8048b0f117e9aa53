#include "analysis/results/over_dumps.hpp"

#include "analysis/budgets/budget_options.hpp"
#include "analysis/commands/arguments.hpp"
#include "analysis/commands/run_command.hpp"
#include "analysis/commands/under_way.hpp"
#include "analysis/results/comparisons.hpp"
#include "analysis/results/dump_set.hpp"
#include "analysis/results/paired.hpp"
#include "analysis/run/ranks.hpp"
#include "data/console.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay {
namespace {

// Head budgets of several dumps, each divided by the mean profile of the others: such a method needs no
// knowledge of the dump's own decoding steps.

/// Dumps whose budgets can be divided by profiles of the others, and the orders under which they can.
struct LeaveOneOut {
  std::vector<std::string> names;   ///< in DumpSet, none or two and more
  std::vector<std::string> orders;  ///< orders that all of these dumps have
  std::vector<LeftOut> left_out;
};

constexpr const char* kWhat = "budgets divided by the profile of the other prompts";

/// The orders of a dump's budgets; none if the run has no budgets.
std::vector<std::string> orders_of(const DumpSet::Entry& entry) {
  const Json::json_pointer orders("/options/budget/orders");
  return entry.settings.contains(orders) ? entry.settings[orders].get<std::vector<std::string>>()
                                         : std::vector<std::string>();
}

LeaveOneOut leave_one_out_of(const DumpSet& set) {
  LeaveOneOut which;
  std::vector<std::string> any, without;
  std::size_t with = 0;
  for (const DumpSet::Entry& entry : set.entries()) {
    const std::vector<std::string> orders = orders_of(entry);
    (orders.empty() ? without : which.names).push_back(entry.name);
    if (orders.empty()) continue;
    for (const std::string& order : orders) place_in(any, order);
    if (++with == 1) which.orders = orders;
    std::erase_if(which.orders, [&](const std::string& order) { return !is_in(orders, order); });
  }
  if (with == 0) return which;  // such is the command, or every dump says why
  if (with == 1 || which.orders.empty()) {
    which.left_out.push_back({kWhat, with == 1 ? fmt::format("{} alone has budgets", which.names.front())
                                               : "the dumps have no order in common"});
    which.names.clear();
    return which;
  }
  for (const std::string& name : without)
    which.left_out.push_back({fmt::format("{}, of {}", kWhat, name), "it has no budgets"});
  for (const std::string& order : any)
    if (!is_in(which.orders, order))
      which.left_out.push_back({fmt::format("{}, under the order {}", kWhat, order), "some dumps lack it"});
  return which;
}

/// A run into `options.out`/leave_one_out/<name>/ for each, once the single folders hold the profiles; what
/// is there of other profiles is replaced. Returns the exit code.
int run_leave_one_out(const Invocation& invocation, const CommonOptions& options, const DumpSet& set,
                      const LeaveOneOut& which, const MakeByProfile& make) {
  const std::filesystem::path out = options.out;
  std::size_t at = 0;
  for (const DumpSet::Entry& entry : set.entries()) {
    if (!is_in(which.names, entry.name)) continue;
    std::vector<std::string> files;
    for (const std::string& other : which.names)
      if (other != entry.name) files.push_back((out / other / "curves" / "{order}~lu.npy").string());
    CommonOptions one = options;
    one.dump = entry.path;
    one.out = (out / kLeaveOneOut / entry.name).string();
    one.label = fmt::format("others' profiles {}/{} {}", ++at, which.names.size(), displayable(entry.name));
    one.renew = true;
    const int code = run_into_folder(invocation, one, [&](const Dump& dump, const Compute& compute) {
      ChosenStages chosen;
      chosen.stages.push_back(make(dump, compute, which.orders, files));
      return chosen;
    });
    if (code != 0) return code;
  }
  return 0;
}

namespace fs = std::filesystem;

/// The dumps, opened one after the other, with what a run would compute of each: whatever is wrong with one
/// is found before anything is computed.
DumpSet dump_set(const CommonOptions& options, const MakeStages& make_stages) {
  std::optional<ChosenCompute> chosen;
  Workers nothing(1);
  DumpSet set;
  for (const std::string& path : options.dumps) {
    CommonOptions one = options;
    one.dump = path;
    one.name = set.name_of(path);
    const Dump dump = one.open();
    if (!chosen) chosen = one.chosen_compute(dump);
    RunOptions run;
    run.precision = chosen->precision;
    run.layers = one.chosen_layers(dump);
    set.add(path, dump, run_settings(dump, make_stages(dump, chosen->on(nothing)).stages, run));
  }
  return set;
}

/// Notes and what was left out, each once, and of how many dumps where not of all.
std::string remarks(const fs::path& folder, const DumpSet& set) {
  std::vector<std::vector<std::string>> dumps;
  for (const DumpSet::Entry& entry : set.entries()) {
    const ResultReader results(folder / entry.name);
    std::vector<std::string>& mine = dumps.emplace_back();
    for (const Json& note : results.summary()["notes"]) mine.push_back("note: " + note.get<std::string>());
    for (const std::string& line : left_out_lines(results.summary())) mine.push_back("left out: " + line);
  }
  std::string text;
  for (const auto& [line, count] : counted_lines(dumps))
    text += line_of_dumps(line, count, dumps.size()) + "\n";
  return text;
}

/// Names of the user's scores and kept sets.
std::set<std::string> own_names(const DumpSet& set) {
  std::set<std::string> names;
  for (const DumpSet::Entry& entry : set.entries())
    for (const auto& [analysis, options] : entry.settings["options"].items())
      for (const char* key : {"scores", "kept"})
        if (options.contains(key) && options[key].is_object())
          for (const auto& [name, contents] : options[key].items()) names.insert(name);
  return names;
}

/// Comparison with the best, prompt by prompt; empty if nothing is compared.
std::string comparison_report(const std::vector<ComparedItems>& all, const std::set<std::string>& own) {
  std::string text;
  for (const StandingTable& table : main_standings(all)) {
    text += fmt::format("\n{}", text_of(table));
    for (std::size_t c = 0; c < table.columns.size(); ++c)
      for (const Comparison& mine : own_against_best(*table.columns[c].of, own))
        if (mine.left->semantics == table.columns[c].semantics || mine.left->semantics == "given")
          text += fmt::format("  {}, yours: {}\n", table.headings[c], verdict(mine));
  }
  if (text.empty()) return text;
  return fmt::format(
      "\nwho is better: ratios within a prompt, their geometric mean and its 95 % interval; * told "
      "apart (p < 0.05,\nadjusted over all pairs of a column)\n{}",
      text);
}

/// Reads every single folder and writes the tables over all; returns the summary's "totals" and the report.
std::pair<Json, std::string> write_tables(const ResultFolder& folder, const DumpSet& set,
                                          const Workers& workers) {
  Json totals = {{"dumps", set.entries().size()}};
  std::string report;
  set.write_csv(folder.file("dumps.csv"));
  for (const Table which : kTables.all()) {
    TableOverDumps table(which);
    for (const DumpSet::Entry& entry : set.entries()) {
      table.add(ResultReader(folder.path() / entry.name));
      if (workers.stopping()) throw Interrupted{};
    }
    for (const std::string& name : set.left_one_out)
      table.add(ResultReader(folder.path() / kLeaveOneOut / name));
    if (const std::size_t rows = table.write(folder); rows > 0)
      totals[fmt::format("{}_over_dumps_rows", name_of(which))] = rows;
    if (const std::string mine = table.report(); !mine.empty()) report += (report.empty() ? "" : "\n") + mine;
  }
  Comparisons comparisons;
  for (const DumpSet::Entry& entry : set.entries()) {
    std::vector<ResultReader> prompt{ResultReader(folder.path() / entry.name)};
    if (is_in(set.left_one_out, entry.name)) prompt.emplace_back(folder.path() / kLeaveOneOut / entry.name);
    comparisons.add_prompt(prompt);
    if (workers.stopping()) throw Interrupted{};
  }
  const std::vector<ComparedItems> compared = comparisons.all();
  if (const std::size_t rows = write_comparisons(compared, folder); rows > 0)
    totals["comparison_rows"] = rows;
  report += comparison_report(compared, own_names(set));
  return {totals, report};
}

/// Writes what all dumps say together, and says it.
void finish(const std::string& command, const CommonOptions& options, const DumpSet& set,
            const std::vector<LeftOut>& left_out, ResultFolder& folder,
            std::chrono::steady_clock::time_point begin) {
  const fs::path out = options.out;
  const bool text = !options.quiet && !options.json;
  if (folder.finished()) {
    if (text) {
      say("{}: already finished, nothing left to do\n", displayable(options.out));
      say_next(next_commands(command, out, options.dumps));
    }
    if (options.json) print_summary(out);
    return;
  }

  Workers workers(1);
  const InterruptGuard guard(workers, fmt::format("interrupted; every dump is finished in {}, and the same "
                                                  "command with --resume forms the tables over all",
                                                  options.out));
  const auto [totals, report] = write_tables(folder, set, workers);
  const double seconds = seconds_since(begin);
  Json run = {{"program", "kvreplay"}, {"version", KVREPLAY_VERSION}, {"dumps", Json::object()}};
  for (const DumpSet::Entry& entry : set.entries()) run["dumps"][entry.name] = entry.path;
  run["seconds"] = seconds;
  folder.write_json("run.json", run);
  Json summary = set.summary(totals);
  for (const LeftOut& left : left_out)
    summary["left_out"].push_back({{"what", left.what}, {"why", left.why}});
  folder.finish(summary);
  if (options.json) print_summary(out);
  if (text) {
    say("{}", remarks(out, set));
    for (const std::string& line : left_out_lines(left_out)) say("left out: {}\n", line);
    say("\nmeans over the dumps{}, by Student's t over dumps, not over "
        "heads (of errors\ngeometric means, on the scale of ratios; of rank correlations by Fisher's z)\n",
        std::ssize(set.entries()) < kFewestPrompts
            ? fmt::format(" (fewer than {} have no confidence intervals)", kFewestPrompts)
            : " and their 95 % confidence intervals");
    if (!report.empty()) say("\n{}", report);
    if (totals.contains("budgets_over_dumps_rows")) say("\n{}\n", oracles_of_budgets());
    say("\nresults: {} ({:.1f} s), of each dump in {}\n", displayable(options.out), seconds,
        displayable((out / "NAME").string()));
    say_next(next_commands(command, out, options.dumps));
  }
}

}  // namespace

int run_on_dumps(const Invocation& invocation, const CommonOptions& options, const MakeStages& make_stages,
                 const ProfilesOfOthers& others) {
  if (options.dumps.size() == 1) {
    if (others.asked == true)
      throw OptionError(budget_option::profile, "several dumps for leave-one-out, which are each other's",
                        "one");
    CommonOptions one = options;
    one.dump = options.dumps.front();
    return run_into_folder(invocation, one, make_stages);
  }
  if (options.shard)
    throw OptionError(run_option::shard, "one dump", fmt::format("{}", options.dumps.size()));
  Ranks& ranks = this_run();
  const bool speaks = ranks.rank() == 0, text = speaks && !options.quiet && !options.json;
  const auto begin = std::chrono::steady_clock::now();
  const fs::path out = options.out;

  DumpSet set;
  LeaveOneOut left_one_out;
  std::optional<ResultFolder> folder;  // on rank 0, which writes what is over all dumps
  together(ranks, [&] {
    with_dashes([&] {
      require_apart(options.out, options.dumps);
      set = dump_set(options, make_stages);
    });
    if (others.make && others.asked.value_or(true)) left_one_out = leave_one_out_of(set);
    set.left_one_out = left_one_out.names;
    if (!speaks) return;
    const std::vector<std::string> old = DumpSet::folders_in(out);
    folder.emplace(out, set.settings(), std::map<Index, std::string>{},
                   set.existing(out, options.existing()));
    // Begun anew, or without the profiles that an earlier run took.
    for (const std::string& name : old) {
      const bool by_others = fs::path(name).has_parent_path();
      if (!options.force && !(by_others && left_one_out.names.empty())) continue;
      ResultFolder::remove(out / name);
      std::error_code more_in_it;
      if (by_others) fs::remove(out / kLeaveOneOut, more_in_it);
    }
  });
  for (std::size_t i = 0; i < set.entries().size(); ++i) {
    const DumpSet::Entry& entry = set.entries()[i];
    CommonOptions one = options;
    one.dump = entry.path;
    one.name = entry.name;
    one.out = (out / entry.name).string();
    one.label = fmt::format("{}/{} {}", i + 1, set.entries().size(), displayable(entry.name));
    one.resume = !options.force;
    const auto then = std::chrono::steady_clock::now();
    const int code = run_into_folder(invocation, one, make_stages);
    if (code != 0) return code;
    if (text && !folder->finished())
      say("{}: {} ({:.1f} s)\n", one.label, entry.lengths(), seconds_since(then));
    std::fflush(stdout);
  }
  const auto then = std::chrono::steady_clock::now();
  const int code = run_leave_one_out(invocation, options, set, left_one_out, others.make);
  if (code != 0) return code;
  if (text && !folder->finished() && !left_one_out.names.empty())
    say("profiles of other prompts: {} ({:.1f} s)\n", counted(std::ssize(left_one_out.names), "dump"),
        seconds_since(then));
  together(ranks, [&] {
    if (speaks) finish(invocation.command, options, set, left_one_out.left_out, *folder, begin);
  });
  return 0;
}

}  // namespace kvreplay
