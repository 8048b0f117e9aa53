#include "analysis/verify/verify.hpp"

#include "analysis/commands/commands.hpp"
#include "analysis/commands/under_way.hpp"
#include "analysis/run/run.hpp"
#include "data/atomic_file.hpp"
#include "data/console.hpp"
#include "data/error.hpp"
#include "sim/cuda/runtime.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <utility>

namespace kvreplay {
namespace {

constexpr std::size_t kFailuresShown = 10;

namespace verify_option {
constexpr OptionFacts tokens{
    "tokens", "N", "Tokens sampled per head for brute force, each for some metric; 0: all, for every one"},
    window{"window", "N", "Observation window: the last N prompt queries", "", 1},
    csv{"csv", "FILE.csv", "Write every figure of how good each approximation is to this table, too"};
}  // namespace verify_option

std::string text_of(const VerifyResult& result) {
  std::size_t name = 0, covered = 0;
  for (const Check& check : result.checks) {
    name = std::max(name, check.name.size());
    covered = std::max(covered, check.covered.size());
  }
  std::string text;
  for (const Check& check : result.checks)
    text += check.skipped ? fmt::format("{:<{}}  {}\n", check.name, name, check.worst)
                          : fmt::format("{:<{}}  {:<{}}  {:<6}  {}\n", check.name, name, check.covered,
                                        covered, check.ok() ? "ok" : "FAILED", check.worst);
  return text;
}

std::string text_of(const AgreementTable& approximations) {
  if (approximations.pairs.empty()) return "";
  return fmt::format(
      "\nHow well each score ranks tokens as each exact error does: Spearman's rho in float64, median over "
      "{}\n"
      "{}The other figures of these {} (relative error, recall, mass, lowest heads): --csv FILE.csv or "
      "--json\n",
      counted(std::ssize(approximations.heads), "head"), rank_text(approximations),
      counted(std::ssize(approximations.pairs), "pair"));
}

Json json_of(const VerifyResult& result) {
  Json json = {{"ok", result.ok()}, {"checks", Json::array()}};
  for (const Check& check : result.checks) {
    Json entry = {{"name", check.name},
                  {"ok", check.ok()},
                  {"skipped", check.skipped},
                  {"covered", check.covered},
                  {"verdict", check.worst}};
    entry.update(check.figures.is_object() ? check.figures : Json::object());
    entry["failures"] = check.failures;
    json["checks"].push_back(std::move(entry));
  }
  json["approximations"] = full_json(result.table);
  return json;
}

}  // namespace

int run_verify(const Arguments& arguments) {
  const auto app = make_app("verify",
                            "Checks closed forms against recomputed attention, the fast backend against "
                            "float64 and the\nreplay against the dump's own o.npy, then shows how good every "
                            "approximation is.\nExits with 1 where a tolerance is missed.",
                            "kvreplay verify data/samples/pystdlib-lm\n"
                            "kvreplay verify DUMP --tokens 0 --layers 0-1\n"
                            "kvreplay verify DUMP --csv approximations.csv");
  CommonOptions common;
  VerifyOptions options;
  std::string csv;
  common.add_dump(*app);
  app->add({bind_option(verify_option::tokens, options.tokens),
            bind_option(verify_option::window, options.window), bind_option(verify_option::csv, csv)});
  app->option(verify_option::csv)->check(file_ending({".csv"}));
  common.add_compute(*app);
  common.add_output(*app);
  if (parse(*app, arguments)) return 0;

  // Exactly the requested computation is verified: nothing falls back to other hardware.
  if (common.precision == Precision::tensor)
    throw InputError(
        "--precision tensor: verify judges f32 and f64; a run with tensor measures its own digits");
  ComputeWish wish = common.compute_wish();
  wish.may_fall_back = false;
  const ChosenCompute chosen = choose_compute(wish);
  const Dump dump = common.open();
  options.layers = common.chosen_layers(dump);
  std::optional<AtomicFile> table;  // opened first, so that an unwritable path fails before the computation
  if (!csv.empty()) table.emplace(std::filesystem::path(csv));
  Workers workers(static_cast<int>(common.threads));
  const InterruptGuard guard(workers, "interrupted; nothing was verified");
  VerifyResult result;
  {
    ProgressBar bar(!common.quiet);
    options.on_progress = [&](Index done, Index total) { bar.show(done, total); };
    layer_fingerprints(dump, options.layers, workers);  // archives agree with their checksums
    try {
      result = verify(dump, options, chosen.on(workers));
    } catch (const cuda::DeviceError& error) {
      throw InputError(fmt::format("{}; use --backend cpu", error.what()));
    }
  }
  if (table) write_medians(std::move(*table), result.table);

  if (common.json) {
    print_json(json_of(result));
  } else if (!common.quiet) {
    const DumpShape& shape = dump.shape();
    const Index rows = window_rows(shape.l, shape.first_query(), options.window).count();
    say("{}, {}, {}\n", shape_line(dump, std::ssize(options.layers)), counted(rows, "window row"),
        counted(future_rows(shape.l, shape.T, shape.first_query()).count(), "decoding step"));
    for (const std::string& note : dump.notes()) say("note: {}\n", note);
    if (rows < options.window) say("note: window {} clipped to {}\n", options.window, rows);
    if (!chosen.note.empty()) say("note: {}\n", backend_line(*chosen.backend, chosen.note));
    say("\n{}", text_of(result));
    say("{}", text_of(result.table));
    say_next(
        {result.ok() ? analyze_command(common) : shell_line({"kvreplay", "info", common.dump, "--values"})});
  }
  std::fflush(stdout);
  for (const Check& check : result.checks) {
    for (std::size_t f = 0; f < std::min(kFailuresShown, check.failures.size()); ++f)
      to_stderr(complaint("kvreplay", check.failures[f]));
    if (check.failures.size() > kFailuresShown)
      to_stderr(fmt::format("kvreplay: {}: {} more heads and metrics miss the tolerance\n", check.name,
                            check.failures.size() - kFailuresShown));
  }
  return result.ok() ? 0 : 1;
}

}  // namespace kvreplay
