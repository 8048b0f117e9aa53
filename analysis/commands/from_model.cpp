#include "analysis/commands/from_model.hpp"

#include "analysis/commands/commands.hpp"
#include "data/console.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

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
    std::string list;
    for (const fs::path& file : files)
      if (is_conversation(file) == conversations) list += (list.empty() ? "" : ",") + file.string();
    if (list.empty()) continue;
    Arguments arguments{from.model, conversations ? "--messages" : "--prompt", list, "--decode",
                        fmt::format("{}", from.decode)};
    if (!output.quiet && !output.json) {
      Arguments estimate = arguments;
      estimate.emplace_back("--estimate");
      run_capture(estimate);
    }
    // One text alone would become the folder itself.
    const bool alone =
        std::ranges::count_if(files, is_conversation) == (conversations ? 1 : std::ssize(files) - 1);
    fs::path to = dumps;
    if (alone && list.find(',') == std::string::npos) to /= fs::path(list).stem();
    arguments.insert(arguments.end(), {"--out", to.string(), "--resume"});
    run(run_capture, "capture", arguments, output);
  }
}

}  // namespace

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

}  // namespace kvreplay
