#include "analysis/recommend/recommend.hpp"

#include "analysis/commands/commands.hpp"
#include "analysis/results/result_folder.hpp"
#include "data/atomic_file.hpp"
#include "data/console.hpp"

#include <fmt/format.h>

#include <filesystem>

namespace kvreplay {

namespace recommend_option {
constexpr OptionFacts out{
    "out", "FILE.json",
    "Write the recipe that is recommended; {bytes} in FILE is the budget, as 20, and with "
    "{way} there is one of every way that is listed, as tokens-everywhere"};
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

/// The files written.
std::vector<std::string> write_recipes(const recommend::MeasuredLevers& measured,
                                       const recommend::Recommended& found, const std::string& out) {
  std::vector<std::string> written;
  for (const recommend::Recommendation& one : found.recommendations)
    for (const recommend::Candidate& candidate : one.candidates) {
      written.push_back(
          with(with(out, kBytes, word_of(one.memory)), kWay, way_of(candidate.use, candidate.where)));
      write_output(written.back(), recipe_json(measured, found, one, candidate).dump(1) + "\n");
      if (out.find(kWay) == std::string::npos) break;
    }
  return written;
}

}  // namespace

int run_recommend(const Arguments& arguments) {
  namespace option = recommend::recommend_option;
  const auto app = make_app(
      "recommend",
      "Which recipe for a model within so many bytes: which tokens each head keeps, and what each layer's "
      "cache is\nstored as, from what evict has measured of several prompts; what it costs prompts that it "
      "was not chosen on,\nand what else could be done.",
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
  const std::vector<std::string> written =
      out.empty() ? std::vector<std::string>() : write_recipes(measured, found, out);
  if (output.json) {
    Json json = json_of(measured, found);
    if (!written.empty()) json["recipes"] = written;
    print_json(json);
  } else if (!output.quiet) {
    say("{}", plain_text(measured, found));
    for (const std::string& note : measured.notes) say("note: {}\n", note);
    for (const std::string& file : written) say("recipe: {}\n", displayable(file));
  }
  return 0;
}

}  // namespace kvreplay
