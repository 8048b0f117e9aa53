#include "analysis/commands/commands.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/run/run.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

struct MergeOptions : CommonOptions {
  std::optional<BackendChoice> other_backend;  ///< instead of the parts' own
};

namespace merge_option {
constexpr OptionFacts dump{"dump", "DIR", "Where the dump is, if not where the parts found it"},
    backend{"backend", "NAME", "Device, if not that of the parts"};
}  // namespace merge_option

/// Arguments without these options, given as "--name value" or "--name=value", and without these flags.
Arguments without(const Arguments& arguments, const std::vector<std::string>& options,
                  const std::vector<std::string>& flags) {
  Arguments rest;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto equals = arguments[i].find('=');
    const std::string name = arguments[i].substr(0, equals);
    if (is_in(flags, name)) continue;
    if (!is_in(options, name))
      rest.push_back(arguments[i]);
    else if (equals == std::string::npos)
      ++i;
  }
  return rest;
}

/// The whole run's command: that of a part, which takes its layers from the parts.
struct WholeRun {
  const Command* command;
  Arguments arguments;
  fs::path directory;  ///< its relative paths are from here
};

WholeRun whole_run(const Part& part, const MergeOptions& options) {
  const fs::path path = part.folder / "run.json";
  WholeRun whole{nullptr, {}, {}};
  std::string name, dump;
  try {
    name = part.how.at("command").get<std::string>();
    dump = part.how.at("dump").get<std::string>();
    whole.arguments = part.how.at("arguments").get<Arguments>();
    whole.directory = part.how.at("directory").get<std::string>();
  } catch (const Json::exception&) {
    throw InputError(path.string(), "the command of the run, its arguments and its directory",
                     "not all of them");
  }
  for (const Command& command : kCommands)
    if (command.shared && command.run != run_merge && name == command.name) whole.command = &command;
  if (whole.command == nullptr)
    throw InputError(path.string(), "a command that fills a result folder", fmt::format("'{}'", name));

  std::vector<std::string> replaced = {"--out", "--shard", "--threads", "--device"};
  if (options.other_backend) replaced.emplace_back("--backend");
  whole.arguments = without(whole.arguments, replaced, {"--resume", "--force", "--quiet", "--json"});
  const auto given = std::ranges::find(whole.arguments, dump);
  if (given == whole.arguments.end()) throw InputError(path.string(), "the dump among the arguments", "none");
  if (!options.dump.empty()) *given = options.dump;
  return whole;
}

}  // namespace

int run_merge(const Arguments& arguments) {
  const auto app = make_app(
      "merge",
      "Joins the result folders of all parts of a --shard run into the one that the whole run would have\n"
      "written. The dump has to be there still: what joins all layers (budget) is computed now.",
      "kvreplay merge results/part-1 results/part-2 results/part-3 --out results/whole\n"
      "mpirun -n 4 kvreplay merge results/part-* --out results/whole");
  MergeOptions options;
  app->add_folders("DIR", options.parts, "The result folders of parts 1/n to n/n");
  options.add_folder(*app);
  app->add({bind_option(merge_option::dump, options.dump),
            bind_option(merge_option::backend, options.other_backend),
            bind_option(compute_option::threads, options.threads)});
  app->option(merge_option::dump)->check(folder_name());
  options.add_output(*app);
  if (parse(*app, arguments)) return 0;

  const std::vector<Part> parts = read_parts(options.parts);
  for (const Part& part : parts) {
    std::error_code error;
    if (fs::equivalent(part.folder, options.out, error))
      throw InputError(fmt::format("--out: {} is one of the parts", options.out));
  }
  // The parts' relative paths hold where the parts were run, this command's where it is.
  std::error_code error;
  WholeRun whole = whole_run(parts.front(), options);
  if (!fs::equivalent(whole.directory, fs::current_path(), error)) {
    const auto from_here = [](std::string& path) { path = fs::absolute(path).string(); };
    from_here(options.out);
    for (std::string& part : options.parts) from_here(part);
    if (!options.dump.empty()) from_here(options.dump);
    whole = whole_run(parts.front(), options);
    fs::current_path(whole.directory, error);  // where it is gone, only relative paths are lost
  }
  const auto add = [&](const std::string& name, const std::string& value) {
    whole.arguments.insert(whole.arguments.end(), {name, value});
  };
  add("--out", options.out);
  add("--shard", kWholeRun);
  for (const std::string& part : options.parts) add("--parts", part);
  if (options.threads > 0) add("--threads", fmt::format("{}", options.threads));
  if (options.other_backend) add("--backend", OptionValue<BackendChoice>::text(*options.other_backend));
  for (const auto& [given, name] : {std::pair{options.resume, "--resume"},
                                    {options.force, "--force"},
                                    {options.quiet, "--quiet"},
                                    {options.json, "--json"}})
    if (given) whole.arguments.emplace_back(name);
  return whole.command->run(whole.arguments);
}

}  // namespace kvreplay
