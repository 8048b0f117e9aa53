#include "analysis/commands/run_command.hpp"

#include "analysis/commands/interrupt.hpp"
#include "analysis/commands/progress_bar.hpp"
#include "analysis/progress.hpp"
#include "data/error.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <unistd.h>

namespace kvreplay {
namespace {

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

/// What does not run where it was asked to, in one line; empty where everything does.
std::string backend_note(const CommonOptions::ChosenCompute& chosen,
                         const std::vector<std::unique_ptr<Stage>>& stages) {
  const Backend& backend = *chosen.compute.backend;
  if (backend.name() == "cpu") return chosen.note;
  std::vector<std::string> parts;
  for (const auto& stage : stages)
    if (const auto on_cpu = stage->on_cpu(); !on_cpu.empty())
      parts.push_back(fmt::format("{} ({})", fmt::join(on_cpu, ", "), stage->name()));
  std::string note = parts.empty() ? "" : fmt::format("on the CPU: {}", fmt::join(parts, ", "));
  if (const Index n = backend.fell_back(); n > 0)
    note += fmt::format("{}{} on the CPU for want of device memory", note.empty() ? "" : "; ",
                        counted(n, "computation"));
  return note;
}

Json run_json(const CommonOptions& options, const Backend& backend, const std::string& note,
              const Workers& workers, const RunResult& result, std::time_t started, double seconds) {
  return {{"program", "kvreplay"},
          {"version", KVREPLAY_VERSION},
          {"dump", options.dump},
          {"host", host_name()},
          {"backend", backend.name()},
          {"backend_note", note},
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
  for (const Json& note : summary["notes"]) text += fmt::format("note: {}\n", note.get<std::string>());
  std::vector<LeftOut> left_out;
  for (const Json& item : summary["left_out"])
    left_out.push_back({item["what"].get<std::string>(), item["why"].get<std::string>()});
  for (const std::string& line : left_out_lines(left_out)) text += fmt::format("left out: {}\n", line);
  return text;
}

Json stored_summary(const ResultFolder& folder) {
  std::ifstream in(folder.path() / "summary.json");
  Json summary = Json::parse(in, nullptr, false);
  if (!summary.is_object())
    throw InputError((folder.path() / "summary.json").string(), "kvreplay's summary", "a damaged file");
  return summary;
}

void print_json(const ResultFolder& folder) {
  Json json = {{"result", folder.path().string()}};
  json.update(stored_summary(folder));
  fmt::print("{}\n", json.dump(1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace

int run_into_folder(const CommonOptions& options, const MakeStages& make_stages) {
  const CommonOptions::ChosenCompute chosen = options.chosen_compute();
  const Dump dump = options.open();
  RunOptions run;
  run.precision = chosen.compute.precision;
  run.layers = options.chosen_layers(dump);
  run.shard = options.chosen_shard();
  const auto [stages, left_out] = make_stages(dump, chosen.compute);
  run.left_out = left_out;
  const bool alone = options.label.empty(), text = alone && !options.quiet && !options.json;

  ResultFolder folder(options.out, run_settings(dump, stages, run), layer_fingerprints(dump, run),
                      options.existing());
  if (folder.finished()) {
    if (text) fmt::print("{}: already finished, nothing left to do\n", options.out);
    if (alone && options.json) print_json(folder);
    return 0;
  }

  Workers workers(options.threads);
  const InterruptGuard guard(
      workers, fmt::format("interrupted; what is finished stays in {}, and the same command with "
                           "--resume goes on from there",
                           options.out));
  const std::time_t started = std::time(nullptr);
  const auto begin = std::chrono::steady_clock::now();
  RunResult result;
  {
    ProgressBar bar(!options.quiet, options.label);
    run.on_progress = [&](Index done, Index total) { bar.show(done, total); };
    result = run_stages(dump, stages, run, folder, workers);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const Backend& backend = *chosen.compute.backend;
  const std::string note = backend_note(chosen, stages);
  folder.write_json("run.json", run_json(options, backend, note, workers, result, started, seconds));
  folder.finish(result.summary);

  if (alone && options.json) print_json(folder);
  if (text) {
    fmt::print("{}", heading(dump, result.summary));
    if (!note.empty()) fmt::print("note: {}\n", backend_line(backend, note));
    if (result.layers_resumed > 0)
      fmt::print("resumed: {} layers were there already, {} computed now\n", result.layers_resumed,
                 result.layers_computed);
    if (!result.report.empty()) fmt::print("\n{}", result.report);
    fmt::print("\nresults: {} ({:.1f} s, {} threads)\n", options.out, seconds, workers.threads());
  }
  return 0;
}

}  // namespace kvreplay
