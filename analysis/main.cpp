#include "analysis/commands/command.hpp"
#include "analysis/commands/interrupt.hpp"
#include "analysis/nearest_name.hpp"
#include "data/error.hpp"
#include "sim/freed_memory.hpp"
#include "sim/schedule.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <vector>

namespace {

using namespace kvreplay;

constexpr int kBadUsage = 2;

constexpr Command kCommands[] = {
    {"info", "what a dump holds; checks every file", run_info},
    {"synth", "writes a synthetic dump with known structure", run_synth},
    {"tokens", "token scores, exact errors, oracles, and how well they agree", run_tokens},
    {"evict", "policies x budgets: kept sets and their exact errors", run_evict},
    {"budget", "head budgets, loss curves, per-head loss maps", run_budget},
    {"channels", "channel interactions, channel pruning, and what it costs", run_channels},
    {"analyze", "every analysis with one pass over the dump", run_analyze},
    {"verify", "checks the numbers against brute force and the model's own outputs", run_verify},
    {"report", "one HTML file that shows a result folder", run_report},
    {"view", "the dashboard: opens a dump or a result folder in a window", run_view},
};

void print_help() {
  fmt::print(
      "Replays dumped Q/K/V tensors and measures what KV-cache compression really costs.\n"
      "Usage: kvreplay COMMAND [OPTIONS]\n\nCommands:\n");
  for (const Command& command : kCommands) fmt::print("  {:<10}{}\n", command.name, command.summary);
  fmt::print(
      "\nkvreplay COMMAND --help says more about one; kvreplay --version names this build.\n"
      "Exit codes: 0 done, 1 a check failed, 2 bad usage or bad input, 130 interrupted.\n\n"
      "Example:\n  kvreplay tokens data/samples/pystdlib-lm --out results/pystdlib\n");
}

int run(const std::vector<std::string>& arguments) {
  std::vector<std::string> names;
  for (const Command& command : kCommands) names.emplace_back(command.name);
  if (arguments.empty())
    throw InputError(
        fmt::format("no command given; there are: {} (kvreplay --help says more)", fmt::join(names, ", ")));
  const std::string& first = arguments.front();
  if (first == "--help" || first == "-h") return print_help(), 0;
  if (first == "--version") return fmt::print("kvreplay {}\n", KVREPLAY_VERSION), 0;
  for (const Command& command : kCommands)
    if (first == command.name) return command.run({arguments.begin() + 1, arguments.end()});
  if (first.starts_with('-'))
    throw InputError(
        fmt::format("unknown option '{}'{}", first, did_you_mean(first, {"--help", "--version"})));
  throw InputError(fmt::format("unknown command '{}'; there are: {}", first, fmt::join(names, ", ")));
}

int complain(const char* line) {
  fmt::print(stderr, "kvreplay: {}\n", line);
  return kBadUsage;
}

}  // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit is then an error of write()
  int code = 0;
  try {
    code = run({argv + 1, argv + argc});
  } catch (const InputError& error) {
    code = complain(error.what());
  } catch (const Interrupted&) {
    fmt::print(stderr, "{}", interrupt_message());
    code = InterruptGuard::kExitCode;
  } catch (const std::bad_alloc&) {
    code = complain("out of memory");
  } catch (const std::exception& error) {
    code = complain(error.what());
  }
  if (std::fflush(stdout) != 0)
    return complain(fmt::format("standard output: cannot be written: {}", std::strerror(errno)).c_str());
  return code;
}
