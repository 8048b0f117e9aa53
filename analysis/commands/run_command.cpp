#include "analysis/commands/run_command.hpp"

#include "analysis/commands/under_way.hpp"
#include "analysis/findings/findings.hpp"
#include "analysis/recommend/levers.hpp"
#include "analysis/results/over_dumps.hpp"
#include "analysis/results/text_file.hpp"
#include "analysis/run/run.hpp"
#include "data/console.hpp"
#include "data/error.hpp"
#include "sim/backend.hpp"
#include "sim/cuda/runtime.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <unistd.h>

namespace kvreplay {
namespace {

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

/// Work that the CPU took over from a GPU, on all ranks.
struct Fallen {
  Index for_memory = 0;  ///< computations
  std::string failure;   ///< the first that a rank tells
};

Fallen fallen_on(Ranks& ranks, const Backend& backend) {
  Fallen all;
  for (const std::string& count : ranks.gather(fmt::format("{}", backend.fell_back())))
    all.for_memory += std::stoll(count);
  for (const std::string& failure : ranks.gather(backend.failure()))
    if (all.failure.empty()) all.failure = failure;
  return all;
}

/// Note on work that does not run on the chosen hardware, in one line; empty if all of it does.
std::string backend_note(const ChosenCompute& chosen, const Stages& stages, const Fallen& fallen) {
  const Backend& backend = *chosen.backend;
  if (backend.name() == "cpu") return chosen.note;
  std::vector<std::string> parts;
  for (const auto& stage : stages)
    if (const auto on_cpu = stage->on_cpu(); !on_cpu.empty())
      parts.push_back(fmt::format("{} ({})", fmt::join(on_cpu, ", "), stage->name()));
  std::vector<std::string> notes;
  if (!parts.empty()) notes.push_back(fmt::format("on the CPU: {}", fmt::join(parts, ", ")));
  if (fallen.for_memory > 0)
    notes.push_back(
        fmt::format("{} on the CPU for want of device memory", counted(fallen.for_memory, "computation")));
  if (!fallen.failure.empty())
    notes.push_back(fmt::format("everything on the CPU since the device failed ({})", fallen.failure));
  return fmt::format("{}", fmt::join(notes, "; "));
}

std::string hardware_text(const Ranks& ranks, const Workers& workers, const Backend& backend) {
  std::string text = ranks.size() == 1
                         ? fmt::format("{} threads", workers.threads())
                         : fmt::format("{} ranks x {} threads", ranks.size(), workers.threads());
  if (const auto devices = backend.devices(); !devices.empty())
    text += fmt::format(", {}{}", devices.size() > 1 ? fmt::format("{} x ", devices.size()) : "",
                        displayable(devices.front().name));
  return text;
}

/// Inputs of a run, opened and checked before anything is written.
struct Preparation {
  Preparation(const CommonOptions& options, const MakeStages& make_stages, Workers& workers)
      : dump(options.open()), chosen(options.chosen_compute(dump)) {
    require_apart(options.out, {options.dump});
    require_apart(options.out, options.parts);
    run.precision = chosen.precision;
    run.layers = options.chosen_layers(dump);
    run.shard = options.shard;
    ChosenStages made = make_stages(dump, chosen.on(workers));
    stages = std::move(made.stages);
    run.left_out = std::move(made.left_out);
    settings = run_settings(dump, stages, run);
    fingerprints = fingerprints_in_turn(dump, layers_of_run(run), workers);
    parts = read_parts(options.parts);
    if (!parts.empty()) require_parts_of(parts, settings);
  }

  /// The hardware that determines the bits of results.
  std::string hardware() const {
    const std::vector<ComputeDevice> devices = chosen.backend->devices();
    return devices.empty() ? "the CPU"
                           : fmt::format("a GPU of capability {}", cuda::dotted(devices[0].capability));
  }

  Dump dump;
  ChosenCompute chosen;
  RunOptions run;
  Stages stages;
  Json settings;
  LayerFingerprints fingerprints;
  std::vector<Part> parts;
};

void require_equal_hardware(Ranks& ranks, const Preparation& prepared) {
  const std::vector<std::string> all = ranks.gather(prepared.hardware());
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      throw SharedFailure(fmt::format(
          "--backend: expected the same hardware on all ranks, found {} on rank 0 and {} on rank {}", all[0],
          all[rank], rank));
}

ResultFolder take_up_folder(Ranks& ranks, const CommonOptions& options, const Preparation& prepared) {
  std::optional<ResultFolder> folder;
  together(ranks, [&] {
    if (ranks.rank() == 0)
      folder.emplace(options.out, prepared.settings, prepared.fingerprints, options.existing());
  });
  if (ranks.size() == 1) return std::move(*folder);
  const bool finished = ranks.gather(folder && folder->finished() ? "finished" : "").front() == "finished";
  together(ranks, [&] {
    if (ranks.rank() > 0)
      folder = ResultFolder::join(options.out, prepared.settings, prepared.fingerprints, finished);
  });
  return std::move(*folder);
}

/// The first of several: they are alike.
Json device_json(const std::vector<ComputeDevice>& devices) {
  if (devices.empty()) return nullptr;
  const ComputeDevice& device = devices.front();
  std::vector<int> numbers;
  for (const ComputeDevice& each : devices) numbers.push_back(each.number);
  return {{"name", device.name},
          {"numbers", numbers},
          {"capability", cuda::dotted(device.capability)},
          {"memory", device.memory},
          {"code", code_text(device)},
          {"driver", cuda::dotted(device.driver)},
          {"runtime", cuda::dotted(device.runtime)}};
}

Json run_json(const Invocation& invocation, const CommonOptions& options, const Backend& backend,
              const std::string& note, const Ranks& ranks, const Workers& workers, const RunResult& result,
              std::time_t started, double seconds) {
  std::error_code ignored;
  return {{"program", "kvreplay"},
          {"version", KVREPLAY_VERSION},
          {"command", invocation.command},
          {"arguments", invocation.arguments},
          {"directory", std::filesystem::current_path(ignored).string()},
          {"dump", options.dump},
          // The way holds where both are moved together.
          {"dump_from_results", std::filesystem::relative(options.dump, options.out, ignored).string()},
          {"host", host_name()},
          {"backend", backend.name()},
          {"backend_note", note},
          {"device", device_json(backend.devices())},
          {"ranks", ranks.size()},
          {"threads", workers.threads()},
          {"started", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(started))},
          {"seconds", seconds},
          {"layers_computed", result.layers_computed},
          {"layers_resumed", result.layers_resumed}};
}

std::string heading(const Dump& dump, const Json& summary) {
  const Json& totals = summary["totals"];
  std::string text = shape_line(dump, totals["layers"].get<Index>());
  for (const char* rows : {"window_rows", "measured_window_rows", "channel_window_rows"})
    if (totals.contains(rows)) {
      text += fmt::format(", {}", counted(totals[rows].get<Index>(), "window row"));
      break;
    }
  if (totals.contains("future_rows"))
    text += fmt::format(", {}", counted(totals["future_rows"].get<Index>(), "decoding step"));
  text += '\n';
  std::set<std::string> said;  // stages may share a note
  for (const Json& note : summary["notes"])
    if (said.insert(note).second) text += fmt::format("note: {}\n", note.get<std::string>());
  for (const std::string& line : left_out_lines(summary)) text += fmt::format("left out: {}\n", line);
  return text;
}

/// Findings of a finished folder, for those who look at it; none of a shard, whose tables are of a part.
std::vector<Finding> findings_in(const std::filesystem::path& folder) {
  const ResultReader results(folder);
  return results.summary().contains("shard") ? std::vector<Finding>() : findings_of(results);
}

}  // namespace

void require_apart(const std::string& out, const std::vector<std::string>& inputs) {
  const auto real = [](const std::string& path) {
    std::error_code error;
    const auto whole = std::filesystem::weakly_canonical(path, error);
    return error ? std::filesystem::absolute(path, error) : whole;
  };
  const auto begins = [](const std::filesystem::path& path, const std::filesystem::path& with) {
    return std::mismatch(path.begin(), path.end(), with.begin(), with.end()).second == with.end();
  };
  for (const std::string& input : inputs) {
    if (input.empty()) continue;  // refused where it is read
    const auto folder = real(out), read = real(input);
    const bool inside = begins(folder, read), contains = begins(read, folder);
    if (inside || contains)
      throw OptionError(run_option::out, fmt::format("a folder apart from what is read, {}", input),
                        inside && contains ? "the same one"
                        : inside           ? "one inside it"
                                           : "one that contains it");
  }
}

void print_summary(const std::filesystem::path& folder, const Json& more) {
  const auto summary = json_object_in(folder / "summary.json");
  if (!summary) throw InputError((folder / "summary.json").string(), "kvreplay's summary", "a damaged file");
  Json json = {{"result", folder.string()}};
  json.update(*summary);
  json.update(more);
  print_json(json);
}

std::vector<std::string> left_out_lines(const Json& summary) {
  std::vector<LeftOut> left_out;
  for (const Json& item : summary["left_out"])
    left_out.push_back({item["what"].get<std::string>(), item["why"].get<std::string>()});
  return left_out_lines(left_out);
}

std::vector<std::string> next_commands(const std::string& command, const std::filesystem::path& folder,
                                       const std::vector<std::string>& dumps) {
  const std::string out = folder.string();
  const bool several = OverDumpsReader::is_over_dumps(folder);
  const ResultReader results = several ? OverDumpsReader(folder).dumps().front() : ResultReader(folder);
  if (results.summary().contains("shard"))
    return {shell_line({"kvreplay", "merge", out}) +
            " OTHER_PARTS --out DIR (with the folders of all parts)"};
  std::vector<std::string> commands;
  if (!results.option("evict", "recipes").is_null()) {
    std::vector<std::string> words{"python3", "data/capture/kvvalidate.py", "--model", "MODEL", "--dump"};
    words.insert(words.end(), dumps.begin(), dumps.end());
    words.insert(words.end(), {"--results", out});
    commands.push_back(shell_line(words));
  } else if (recommend::recommendable(results)) {
    commands.push_back(shell_line({"kvreplay", "recommend", out, "--bytes", "25%"}));
  }
  commands.insert(command == "evict" ? commands.end() : commands.begin(),
                  shell_line({"kvreplay", "report", out}));
  return commands;
}

int run_into_folder(const Invocation& invocation, const CommonOptions& options,
                    const MakeStages& make_stages) {
  Ranks& ranks = this_run();
  const bool speaks = ranks.rank() == 0, tells = speaks && options.label.empty(),
             text = tells && !options.quiet && !options.json;
  const bool share = options.threads == 0 && ranks.size() > 1;
  Workers workers(share ? fair_threads(ranks) : static_cast<int>(options.threads));
  std::unique_ptr<Preparation> prepared;
  together(ranks, [&] {
    with_dashes([&] { prepared = std::make_unique<Preparation>(options, make_stages, workers); });
  });
  if (ranks.size() > 1) require_equal_hardware(ranks, *prepared);
  auto& [dump, chosen, run, stages, settings, fingerprints, parts] = *prepared;

  ResultFolder folder = take_up_folder(ranks, options, *prepared);
  if (folder.finished()) {
    if (text) {
      say("{}: already finished, nothing left to do\n", displayable(options.out));
      say_next(next_commands(invocation.command, folder.path(), {options.dump}));
    }
    if (tells && options.json)
      print_summary(folder.path(), {{"findings", json_of(findings_in(folder.path()))}});
    return 0;
  }

  const InterruptGuard guard(
      workers, speaks ? fmt::format("interrupted; what is finished stays in {}, and the same command with "
                                    "--resume goes on from there",
                                    options.out)
                      : "");
  const Ranks::WhileWaiting stop(ranks, [&workers] {
    if (workers.stopping()) throw Interrupted{};
  });
  const std::time_t started = std::time(nullptr);
  const auto begin = std::chrono::steady_clock::now();
  if (speaks && !options.quiet && !options.json)
    for (const auto& stage : stages)
      if (const std::optional<OptionText> price = stage->price())
        to_stderr("note: " + price->dashed() + "\n");
  if (speaks) adopt_parts(parts, folder, workers);
  RunResult result;
  {
    ProgressBar bar(speaks && !options.quiet, options.label);
    run.on_progress = [&](Index done, Index total) { bar.show(done, total); };
    result = run_stages(dump, stages, run, folder, workers, ranks);
  }
  const double seconds = seconds_since(begin);
  const Backend& backend = *chosen.backend;
  const Fallen fallen = fallen_on(ranks, backend);
  if (!speaks) {
    ranks.gather("");  // until rank 0 has written everything: should it fail, so does the run
    return 0;
  }
  const std::string note = backend_note(chosen, stages, fallen);
  folder.write_json("run.json",
                    run_json(invocation, options, backend, note, ranks, workers, result, started, seconds));
  folder.finish(result.summary);
  ranks.gather("");

  if (tells && options.json)
    print_summary(folder.path(), {{"findings", json_of(findings_in(folder.path()))}});
  if (text) {
    say("{}", heading(dump, result.summary));
    if (!note.empty()) say("note: {}\n", backend_line(backend, note));
    if (result.layers_resumed > 0)
      say("resumed: {} layers were there already, {} computed now\n", result.layers_resumed,
          result.layers_computed);
    if (!result.report.empty()) say("\n{}", result.report);
    if (const std::string found = text_of(findings_in(folder.path())); !found.empty()) say("\n{}", found);
    say("\nresults: {} ({:.1f} s, {})\n", displayable(options.out), seconds,
        hardware_text(ranks, workers, backend));
    say_next(next_commands(invocation.command, folder.path(), {options.dump}));
  }
  return 0;
}

}  // namespace kvreplay
