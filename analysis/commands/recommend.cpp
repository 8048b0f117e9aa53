#include "analysis/recommend/recommend.hpp"

#include "analysis/commands/commands.hpp"
#include "analysis/results/result_folder.hpp"
#include "analysis/results/text_file.hpp"
#include "data/atomic_file.hpp"
#include "data/console.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <system_error>

namespace kvreplay {

namespace fs = std::filesystem;

namespace recommend_option {
constexpr OptionFacts out{
    "out", "FILE.json",
    "Write the recipe of the setting that the output names first. {bytes} in FILE is the budget, as 20; "
    "with {way}, every line of the table has a recipe, as tokens-everywhere"},
    model{"model", "FILE.gguf",
          "In place of results: capture the prompts with llama.cpp, measure the engine's settings (for "
          "llama.cpp: in the model itself), and choose"},
    prompts{"prompts", "PATH",
            "Texts (.txt), conversations or logged requests (.json, .jsonl), or a folder of these"},
    max{"max", "N", "Prompts at most", "", 1}, decode{"decode", "N", "Decoding steps of a text", "", 1},
    work{"work", "DIR", "Folder for the dumps and results, which a second run goes on with"};
}  // namespace recommend_option

namespace {

/// "20" of "20%", "0.2" and "1.5GiB" as they are.
std::string word_of(const recommend::Memory& memory) {
  return memory.text.ends_with('%') ? memory.text.substr(0, memory.text.size() - 1) : memory.text;
}

constexpr std::string_view kBytes = "{bytes}", kWay = "{way}";

std::string with(std::string file, std::string_view what, const std::string& word) {
  if (const std::size_t at = file.find(what); at != std::string::npos) file.replace(at, what.size(), word);
  return file;
}

struct Recipes {
  std::vector<std::string> written, missing;  ///< missing: no candidate fits into their bytes
};
Recipes write_recipes(const recommend::MeasuredLevers& measured, const recommend::Recommended& found,
                      const std::string& out) {
  Recipes recipes;
  for (const recommend::Recommendation& one : found.recommendations) {
    const std::string of_bytes = with(out, kBytes, word_of(one.memory));
    if (one.candidates.empty()) recipes.missing.push_back(of_bytes);
    const bool each_way = out.find(kWay) != std::string::npos;
    for (const recommend::Candidate& candidate : one.candidates) {
      if (!each_way && &candidate != &one.winner()) continue;
      recipes.written.push_back(with(of_bytes, kWay, way_of(candidate.use, candidate.where)));
      write_output(recipes.written.back(), recipe_json(measured, found, one, candidate).dump(1) + "\n");
    }
  }
  return recipes;
}

/// Reports files that were not written. A file of an earlier run stays, and must not be taken for a new one.
void tell_missing(const std::vector<std::string>& missing) {
  for (const std::string& file : missing) {
    std::error_code ignored;
    const bool old = fs::exists(file, ignored);
    to_stderr(
        complaint("kvreplay", fmt::format("{}: not written, nothing that was measured is as small{}", file,
                                          old ? "; the file that is there is of an earlier run" : "")));
  }
}

/// A path below the working folder, relative to the working folder.
std::string seen_from_here(const std::string& path) {
  std::error_code ignored;
  const std::string from_here = fs::proximate(path, ignored).string();
  return from_here.empty() || from_here.starts_with("..") ? path : from_here;
}

/// The --prompt-len of a run, taken from its recorded arguments.
std::vector<std::string> prompt_len_of(const fs::path& results) {
  try {
    const auto run = json_object_in(results / "run.json");
    const auto arguments = run ? run->value("arguments", Arguments()) : Arguments();
    const auto at = std::ranges::find(arguments, "--prompt-len");
    if (at != arguments.end() && at + 1 != arguments.end()) return {*at, *(at + 1)};
  } catch (const std::exception&) {
  }
  return {};
}

/// The command that writes the recipe of the report, or one with a budget that the smallest candidate fits.
std::string command_with_recipe(const std::vector<std::string>& results,
                                const recommend::RecommendOptions& options,
                                const recommend::Recommended& found) {
  std::vector<std::string> words{"kvreplay", "recommend"};
  words.insert(words.end(), results.begin(), results.end());
  const recommend::Recommendation& one = found.recommendations.front();
  words.insert(words.end(), {"--bytes", one.smallest ? one.smallest->to_type : one.memory.text});
  if (options.context) words.insert(words.end(), {"--context", fmt::format("{}", *options.context)});
  if (options.batch > 1) words.insert(words.end(), {"--batch", fmt::format("{}", options.batch)});
  const bool frees = one.candidates.empty() && !one.smallest;
  if (options.engine != Engine::any && !frees)
    words.insert(words.end(), {"--for", std::string(kEngines[options.engine].name)});
  if (options.by != recommend::By::mean)
    words.insert(words.end(), {"--by", std::string(recommend::kBy[options.by].name)});
  words.insert(words.end(), {"--out", "recipe.json"});
  return shell_line(words);
}

/// The commands that run a recipe on the prompts and in the model.
std::string validation_commands(const recommend::MeasuredLevers& measured, const std::string& results,
                                const std::string& recipe) {
  std::vector<std::string> dumps;
  for (const recommend::MeasuredPrompt& prompt : measured.prompts)
    dumps.push_back(prompt.dump.empty() ? "DUMP" : seen_from_here(prompt.dump));
  std::string folder = results;
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  folder += "-recipe";
  std::vector<std::string> evict{"kvreplay", "evict"},
      validate{"python3", "data/capture/kvvalidate.py", "--model", "MODEL", "--dump"};
  evict.insert(evict.end(), dumps.begin(), dumps.end());
  const std::vector<std::string> prompt_len = prompt_len_of(measured.prompts.front().results);
  evict.insert(evict.end(), prompt_len.begin(), prompt_len.end());
  evict.insert(evict.end(), {"--recipe", recipe, "--out", folder});
  validate.insert(validate.end(), dumps.begin(), dumps.end());
  validate.insert(validate.end(), {"--results", folder});
  return shell_line(evict) + " && " + shell_line(validate);
}

/// A model and prompts in place of results: what `recommend --model` measures.
struct FromModel {
  std::string model;                 ///< a GGUF file
  std::vector<std::string> prompts;  ///< texts, conversations (.json, .jsonl), or folders of these
  Index max = 16;                    ///< prompts at most
  Index decode = 64;                 ///< decoding steps of a text
  std::string work;                  ///< folder of dumps and results
};

bool is_conversation(const fs::path& file) {
  return file.extension() == ".json" || file.extension() == ".jsonl";
}

/// The files of `given`, folders replaced by the texts and conversations in them, at most `max`.
std::vector<fs::path> files_of(const std::vector<std::string>& given, Index max) {
  std::vector<fs::path> files;
  for (const std::string& path : given) {
    if (!fs::is_directory(path)) {
      files.emplace_back(path);
      continue;
    }
    std::vector<fs::path> inside;
    for (const fs::directory_entry& entry : fs::directory_iterator(path))
      if (entry.path().extension() == ".txt" || is_conversation(entry.path())) inside.push_back(entry.path());
    if (inside.empty()) throw InputError(path, "texts (.txt) or conversations (.json, .jsonl)", "none");
    std::ranges::sort(inside);
    files.insert(files.end(), inside.begin(), inside.end());
  }
  if (std::ssize(files) > max) files.resize(static_cast<std::size_t>(max));
  return files;
}

/// Runs a command and prints it first. Throws InputError where it fails; its own message stands above.
void run(int (*command)(const Arguments&), const std::string& name, Arguments arguments,
         const CommonOptions& output) {
  Arguments words{"kvreplay", name};
  words.insert(words.end(), arguments.begin(), arguments.end());
  if (!output.quiet && !output.json) say("$ {}\n", shell_line(words));
  arguments.emplace_back("--quiet");
  if (const int status = command(arguments); status != 0)
    throw InputError(fmt::format("{} ended with {}", name, status));
}

/// Settings to measure: those of the engine, or tokens and bits for a recipe.
Arguments settings_for(Engine engine) {
  const EngineFacts& facts = kEngines[engine];
  if (engine != Engine::any && !facts.evicts) return {"--policy", "none", "--bits", std::string(facts.name)};
  Arguments settings{"--policy", "none,snapkv,h2o", "--keep", "80%,65%,50%,35%,25%,18%,12%,8%"};
  if (engine == Engine::any)
    settings.insert(settings.end(),
                    {"--bits", "16,8,k8v4,4,k4v2,2", "--rotate", "none,hadamard", "--residual", "0"});
  return settings;
}

void capture_all(const FromModel& from, const std::vector<fs::path>& files, const std::string& dumps,
                 const CommonOptions& output) {
  for (const bool conversations : {false, true}) {
    std::vector<std::string> of_kind;
    for (const fs::path& file : files)
      if (is_conversation(file) == conversations) of_kind.push_back(file.string());
    if (of_kind.empty()) continue;
    const std::string list = fmt::format("{}", fmt::join(of_kind, ","));
    Arguments arguments{from.model, conversations ? "--messages" : "--prompt", list, "--decode",
                        fmt::format("{}", from.decode)};
    if (!output.quiet && !output.json) {
      Arguments estimate = arguments;
      estimate.emplace_back("--estimate");
      run_capture(estimate);
    }
    // One text alone would become the folder itself.
    const fs::path to = of_kind.size() == 1 ? fs::path(dumps) / fs::path(list).stem() : fs::path(dumps);
    arguments.insert(arguments.end(), {"--out", to.string(), "--resume"});
    run(run_capture, "capture", arguments, output);
  }
}

/// Measures the prompts' caches with every setting that recipes or the engine can have: runs `capture` and
/// `evict`, and for llama.cpp `capture --judge`, each printed as the command that does it alone. What is
/// there stays. Returns the result folder. Throws InputError where a step refuses.
std::string measure(const FromModel& from, Engine engine, const CommonOptions& output) {
  const fs::path work = from.work;
  const std::string dumps = (work / "dumps").string(), results = (work / "results").string();
  fs::create_directories(work);
  capture_all(from, files_of(from.prompts, from.max), dumps, output);
  std::vector<std::string> captured;
  for (const fs::directory_entry& entry : fs::directory_iterator(dumps))
    if (fs::exists(entry.path() / "manifest.json")) captured.push_back(entry.path().string());
  std::ranges::sort(captured);
  Arguments evict = captured;
  const Arguments settings = settings_for(engine);
  evict.insert(evict.end(), {"--out", results});
  evict.insert(evict.end(), settings.begin(), settings.end());
  if (fs::exists(results)) evict.emplace_back("--resume");
  run(run_evict, "evict", evict, output);
  if (engine != Engine::llama_cpp) return results;
  for (const std::string& dump : captured) {
    const fs::path of =
        captured.size() > 1 ? fs::path(results) / fs::path(dump).filename() : fs::path(results);
    if (!fs::exists(of / "validate.csv"))
      run(run_capture, "capture", {from.model, "--judge", of.string()}, output);
  }
  return results;
}

void require_consistent(const recommend::RecommendOptions& options, const recommend::GateOptions& gate,
                        const std::string& out) {
  namespace option = recommend::recommend_option;
  const OptionText limits = option_text("a limit: {} or {}", option::fail_above, option::fail_flips);
  if (options.bytes.empty() && gate.check.empty())
    throw OptionError(option::bytes,
                      option_text("the size of the cache, as 20% or 1.5GiB (or {} CASE)", option::check),
                      "none");
  if (!gate.check.empty() && (!options.bytes.empty() || !out.empty()))
    throw OptionError(option::check,
                      option_text("no {} and no {}: nothing is chosen", option::bytes, recommend_option::out),
                      "one");
  if (!gate.check.empty() && !gate.is_set()) throw OptionError(option::check, limits, "none");
  if (gate.fail_flips && gate.check.empty())
    throw OptionError(option::fail_flips,
                      option_text("{} CASE: a choice has no flips before it is run", option::check), "none");
  if (!gate.junit.empty() && !gate.is_set()) throw OptionError(option::junit, limits, "none");
  if (!out.empty() && options.bytes.size() > 1 && out.find(kBytes) == std::string::npos)
    throw OptionError(recommend_option::out, "{bytes} in the name of one of several recipes",
                      fmt::format("'{}'", out));
}

void require_consistent(const std::vector<std::string>& results, const FromModel& from) {
  if (results.empty() == from.model.empty())
    throw OptionError("RESULTS",
                      option_text("result folders of evict, or {} with {}", recommend_option::model,
                                  recommend_option::prompts),
                      results.empty() ? "neither" : "both");
  if (from.model.empty() && (!from.prompts.empty() || !from.work.empty()))
    throw OptionError(recommend_option::model, "the model that reads the prompts", "none");
  if (from.model.empty()) return;
  if (from.prompts.empty()) throw OptionError(recommend_option::prompts, "texts or conversations", "none");
  if (from.work.empty()) throw OptionError(recommend_option::work, "a folder for dumps and results", "none");
}

/// Prints the judgement of each gate, writes them, and returns the exit status.
int judged(const std::vector<recommend::Gate>& gates, const recommend::GateOptions& options,
           const CommonOptions& output) {
  if (!options.junit.empty()) write_output(options.junit, recommend::junit_text(gates));
  if (!output.json)
    for (const recommend::Gate& gate : gates) say("{}\n", recommend::gate_text(gate, options));
  return std::ranges::all_of(gates, &recommend::Gate::passes) ? 0 : 1;
}

}  // namespace

int run_recommend(const Arguments& arguments) {
  namespace option = recommend::recommend_option;
  const auto app = make_app(
      "recommend",
      "Chooses the setting with the lowest loss that fits into so many bytes, from what evict measured on "
      "several\nprompts: the tokens of each head and the format of each layer. Prints its loss on prompts "
      "that did not choose it.",
      "kvreplay evict DUMP... --out results/levers --policy none,h2o,snapkv --keep 75%,50%,25%,10% --bits "
      "16,8,k8v4,4,2 --residual 0\n"
      "kvreplay recommend results/levers --bytes 20% --out recipe.json\n"
      "kvreplay recommend results/levers --bytes 1.5GiB --context 32768 --batch 8\n"
      "kvreplay recommend results/vllm --bytes 50% --for vllm               # of evict --policy none --bits "
      "vllm\n"
      "kvreplay recommend --model M.gguf --prompts texts --work work --for llama.cpp --bytes 41%\n"
      "kvreplay recommend results/llama.cpp --check q4_0+hadamard --fail-above 0.02\n"
      "kvreplay evict DUMP... --recipe recipe.json --out results/recipe    # all of it at once, exactly");
  std::vector<std::string> results;
  recommend::RecommendOptions options;
  recommend::GateOptions gate;
  std::string out;
  CommonOptions output;
  FromModel from;
  app->add_folders("RESULTS", results, "Results of evict, of several dumps of one model (or --model)", false);
  app->add({bind_option(option::bytes, options.bytes), bind_option(option::context, options.context),
            bind_option(option::batch, options.batch),
            bind_option(option::engine, options.engine)
                .saying(fmt::format(": {}", fmt::join(kEngines.names(), ", "))),
            bind_option(option::by, options.by)
                .saying(fmt::format(": {}", fmt::join(recommend::kBy.names(), ", "))),
            bind_option(option::without, options.without), bind_option(recommend_option::out, out),
            bind_option(option::check, gate.check), bind_option(option::fail_above, gate.fail_above),
            bind_option(option::fail_flips, gate.fail_flips), bind_option(option::junit, gate.junit),
            bind_option(recommend_option::model, from.model),
            bind_option(recommend_option::prompts, from.prompts).naming_files(),
            bind_option(recommend_option::max, from.max), bind_option(recommend_option::decode, from.decode),
            bind_option(recommend_option::work, from.work)});
  app->option(recommend_option::out)->check(file_ending({".json"}));
  output.add_output(*app);
  if (parse(*app, arguments)) return 0;
  require_consistent(options, gate, out);
  require_consistent(results, from);
  if (!from.model.empty()) results = {measure(from, options.engine, output)};
  std::vector<fs::path> folders;
  for (const std::string& folder : results) {
    ResultFolder::require_as_written(folder);
    folders.emplace_back(folder);
  }
  recommend::MeasuredLevers measured = recommend::read_levers(folders);
  if (!gate.check.empty()) {
    const std::vector<recommend::Gate> gates{recommend::gate_of_case(measured, gate)};
    if (output.json) print_json(recommend::gate_json(gates.front()));
    return judged(gates, gate, output);
  }
  const recommend::Recommended found = recommend::recommend(measured, options);
  const Recipes recipes = out.empty() ? Recipes() : write_recipes(measured, found, out);
  const std::vector<std::string>& written = recipes.written;
  std::vector<recommend::Gate> gates;
  if (gate.is_set())
    for (const recommend::Recommendation& one : found.recommendations)
      if (!one.candidates.empty()) gates.push_back(recommend::gate_of_choice(measured, one, gate));
  if (output.json) {
    Json json = json_of(measured, found);
    if (!written.empty()) json["recipes"] = written;
    for (const recommend::Gate& one : gates) json["gates"].push_back(recommend::gate_json(one));
    print_json(json);
  } else if (!output.quiet) {
    say("{}", plain_text(measured, found));
    for (const std::string& note : measured.notes) say("note: {}\n", note);
    for (const std::string& file : written) say("recipe: {}\n", displayable(file));
    say_next({written.empty() ? command_with_recipe(results, options, found)
                              : validation_commands(measured, results.front(), written.front())});
  }
  const int status = judged(gates, gate, output);
  std::fflush(stdout);
  tell_missing(recipes.missing);
  // A budget that nothing fits has nothing that passes.
  const bool none_fits = gate.is_set() && gates.size() < found.recommendations.size();
  return recipes.missing.empty() && !none_fits ? status : 1;
}

}  // namespace kvreplay
