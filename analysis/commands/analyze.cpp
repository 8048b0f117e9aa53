#include "analysis/commands/run_command.hpp"
#include "analysis/nearest_name.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay {
namespace {

/// The analyses that one pass over the dump can feed, by their names for --only.
struct StageEntry {
  const char* name;
  std::unique_ptr<Stage> (*make)(const Dump& dump, const TokenStageOptions& tokens, Precision precision);
};

constexpr StageEntry kStages[] = {
    {"tokens",
     [](const Dump& dump, const TokenStageOptions& tokens, Precision precision) -> std::unique_ptr<Stage> {
       return std::make_unique<TokenStage>(dump, tokens, precision);
     }},
};

std::vector<std::string> stage_names() {
  std::vector<std::string> names;
  for (const StageEntry& entry : kStages) names.emplace_back(entry.name);
  return names;
}

}  // namespace

int run_analyze(const Arguments& arguments) {
  const auto app = make_app("analyze", "Runs every analysis with one pass over the dump.",
                            "kvreplay analyze data/samples/pystdlib-lm --out results/pystdlib\n"
                            "kvreplay analyze DUMP --out DIR --only tokens --layers 0,3-5");
  CommonOptions options;
  TokenStageOptions token_options;
  std::vector<std::string> only;
  options.add_dump(*app);
  options.add_results(*app);
  app->add_option("--only", only, fmt::format("Narrow it to some of: {}", fmt::join(stage_names(), ", ")))
      ->delimiter(',')
      ->allow_extra_args(false)
      ->option_text("LIST [all]");
  add_token_options(*app, token_options);
  options.add_compute(*app);
  options.add_output(*app);
  if (parse(*app, arguments)) return 0;
  const std::vector<std::string> names = stage_names();
  for (const std::string& name : only)
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw InputError("--only", fmt::format("some of {}", fmt::join(names, ", ")),
                       fmt::format("'{}'", name));
  return run_into_folder(options, [&](const Dump& dump, Precision precision) {
    std::vector<std::unique_ptr<Stage>> stages;
    for (const StageEntry& entry : kStages)
      if (only.empty() || std::find(only.begin(), only.end(), entry.name) != only.end())
        stages.push_back(entry.make(dump, token_options, precision));
    return stages;
  });
}

}  // namespace kvreplay
