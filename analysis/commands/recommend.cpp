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

namespace recommend_option {
constexpr OptionFacts out{
    "out", "FILE.json",
    "Write the recipe of the first line, recommended or only lowest. {bytes} in FILE is the budget, as 20; "
    "with {way}, every line has a recipe, as tokens-everywhere"};
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
    for (const recommend::Candidate& candidate : one.candidates) {
      recipes.written.push_back(with(of_bytes, kWay, way_of(candidate.use, candidate.where)));
      write_output(recipes.written.back(), recipe_json(measured, found, one, candidate).dump(1) + "\n");
      if (out.find(kWay) == std::string::npos) break;
    }
  }
  return recipes;
}

/// Reports files that were not written. A file of an earlier run stays, and must not be taken for a new one.
void tell_missing(const std::vector<std::string>& missing) {
  for (const std::string& file : missing) {
    std::error_code ignored;
    const bool old = std::filesystem::exists(file, ignored);
    to_stderr(
        complaint("kvreplay", fmt::format("{}: not written, nothing that was measured is as small{}", file,
                                          old ? "; the file that is there is of an earlier run" : "")));
  }
}

/// A path below the working folder, relative to the working folder.
std::string seen_from_here(const std::string& path) {
  std::error_code ignored;
  const std::string from_here = std::filesystem::proximate(path, ignored).string();
  return from_here.empty() || from_here.starts_with("..") ? path : from_here;
}

/// The --prompt-len of a run, taken from its recorded arguments.
std::vector<std::string> prompt_len_of(const std::filesystem::path& results) {
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
      "kvreplay evict DUMP... --recipe recipe.json --out results/recipe    # all of it at once, exactly");
  std::vector<std::string> results;
  recommend::RecommendOptions options;
  std::string out;
  CommonOptions output;
  app->add_folders("RESULTS", results, "Results of evict, of several dumps of one model");
  app->add({bind_option(option::bytes, options.bytes), bind_option(option::context, options.context),
            bind_option(option::batch, options.batch),
            bind_option(option::engine, options.engine)
                .saying(fmt::format(": {}", fmt::join(kEngines.names(), ", "))),
            bind_option(option::by, options.by)
                .saying(fmt::format(": {}", fmt::join(recommend::kBy.names(), ", "))),
            bind_option(option::without, options.without), bind_option(recommend_option::out, out)});
  app->option(option::bytes)->required();
  app->option(recommend_option::out)->check(file_ending({".json"}));
  output.add_output(*app);
  if (parse(*app, arguments)) return 0;
  if (!out.empty() && options.bytes.size() > 1 && out.find(kBytes) == std::string::npos)
    throw OptionError(recommend_option::out, "{bytes} in the name of one of several recipes",
                      fmt::format("'{}'", out));

  std::vector<std::filesystem::path> folders;
  for (const std::string& folder : results) {
    ResultFolder::require_as_written(folder);
    folders.emplace_back(folder);
  }
  recommend::MeasuredLevers measured = recommend::read_levers(folders);
  const recommend::Recommended found = recommend::recommend(measured, options);
  const Recipes recipes = out.empty() ? Recipes() : write_recipes(measured, found, out);
  const std::vector<std::string>& written = recipes.written;
  if (output.json) {
    Json json = json_of(measured, found);
    if (!written.empty()) json["recipes"] = written;
    print_json(json);
  } else if (!output.quiet) {
    say("{}", plain_text(measured, found));
    for (const std::string& note : measured.notes) say("note: {}\n", note);
    for (const std::string& file : written) say("recipe: {}\n", displayable(file));
    say_next({written.empty() ? command_with_recipe(results, options, found)
                              : validation_commands(measured, results.front(), written.front())});
  }
  std::fflush(stdout);
  tell_missing(recipes.missing);
  return recipes.missing.empty() ? 0 : 1;
}

}  // namespace kvreplay
