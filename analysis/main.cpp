#include "analysis/commands/commands.hpp"
#include "analysis/commands/under_way.hpp"
#include "analysis/options/option.hpp"
#include "analysis/run/ranks.hpp"
#include "data/console.hpp"
#include "data/error.hpp"
#include "sim/cuda/runtime.hpp"
#include "sim/freed_memory.hpp"
#include "sim/schedule.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace kvreplay;

constexpr int kBadUsage = 2;

void print_help() {
  fmt::print(
      "Replays dumped Q/K/V tensors and measures what KV-cache compression really costs.\n"
      "Usage: kvreplay COMMAND [OPTIONS]\n\nCommands:\n");
  for (const Command& command : kCommands) fmt::print("  {:<10}{}\n", command.name, command.summary);
  fmt::print(
      "\nkvreplay COMMAND --help says more about one; kvreplay --version names this build.\n"
      "With MPI (--version says), mpirun -n N kvreplay COMMAND shares the layers between processes. Without "
      "it, --shard i/n\n"
      "runs a part, and kvreplay merge joins the parts. All processes must see the dump and --out.\n"
      "Exit codes: 0 done, 1 a check failed, 2 bad usage or bad input, 130 interrupted.\n\n"
      "Example:\n  kvreplay tokens data/samples/pystdlib-lm --out results/pystdlib\n");
}

std::unique_ptr<Ranks> g_ranks;

std::string command_names() {
  std::string names;
  for (const Command& command : kCommands) names += (names.empty() ? "" : ", ") + std::string(command.name);
  return names;
}

const Command& command_named(const std::string& name) {
  for (const Command& command : kCommands)
    if (name == command.name) return command;
  throw InputError(fmt::format("unknown command '{}'; there are: {}", name, command_names()));
}

std::string version() {
  const std::string mpi = mpi_version();
  return fmt::format("kvreplay {}{}", KVREPLAY_VERSION, mpi.empty() ? "" : fmt::format(" with {}", mpi));
}

int run(const std::vector<std::string>& arguments) {
  const bool speaks = g_ranks->rank() == 0;
  if (arguments.empty())
    throw InputError(
        fmt::format("no command given; there are: {} (kvreplay --help says more)", command_names()));
  const std::string& first = arguments.front();
  if (first == "--help" || first == "-h") return speaks ? print_help() : void(), 0;
  if (first == "--version") return speaks ? fmt::print("{}\n", version()) : void(), 0;
  if (first.starts_with('-'))
    throw InputError(
        fmt::format("unknown option '{}'{}", first, did_you_mean(first, {"--help", "--version"})));
  const Command& command = command_named(first);
  if (!command.shared && !speaks) return 0;
  if (!command.shared) g_ranks->stand_alone();
  int code = 0;
  with_dashes([&] { code = command.run({arguments.begin() + 1, arguments.end()}); });
  return code;
}

/// Exit code of a run, and the message at its end.
struct Ending {
  int code = 0;
  std::string line;
  bool everywhere = false;  ///< all ranks end like this
};

Ending ending_of(const std::vector<std::string>& arguments) {
  try {
    return {run(arguments), "", true};
  } catch (const SharedFailure& failure) {
    return {kBadUsage, complaint("kvreplay", failure.what()), true};
  } catch (const Interrupted&) {
    return {InterruptGuard::kExitCode, interrupt_message(), false};
  } catch (const cuda::DeviceError& error) {
    return {kBadUsage, complaint("kvreplay", fmt::format("{}; use --backend auto or cpu", error.what())),
            false};
  } catch (const std::bad_alloc&) {
    return {kBadUsage, "kvreplay: out of memory\n", false};
  } catch (const std::exception& error) {
    return {kBadUsage, complaint("kvreplay", error.what()), false};
  }
}

/// Ends one of several ranks: one rank reports the error, and no rank waits for one that is gone.
void end_together(Ranks& ranks, Ending ending) {
  if (!ending.everywhere && !ranks.have_met()) {  // bad usage, most likely on all of them
    try {
      together(ranks, [&] { throw std::runtime_error(ending.line); });
    } catch (const SharedFailure& failure) {
      ending.line = failure.what();
    }
    ending.everywhere = true;
  }
  if (ending.everywhere) {
    if (ranks.rank() == 0) to_stderr(ending.line);
    return;
  }
  // All ranks got the signal, and a launcher ends those that did not; abort() would have it say more.
  if (ending.code == InterruptGuard::kExitCode) {
    if (!ranks.fails_elsewhere()) to_stderr(ending.line);
    std::fflush(nullptr);
    std::_Exit(ending.code);
  }
  if (ranks.announce_failure())
    to_stderr(ending.line);
  else
    std::this_thread::sleep_for(std::chrono::seconds(5));  // until the rank that tells of it ends this one
  std::fflush(nullptr);
  ranks.abort(ending.code);
}

int complain(const std::string& line) {
  to_stderr(complaint("kvreplay", line));
  return kBadUsage;
}

}  // namespace

namespace kvreplay {
Ranks& this_run() { return *g_ranks; }
}  // namespace kvreplay

int main(int argc, char** argv) {
  keep_standard_streams();
  keep_freed_memory();
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit is then an error of write()
  try {
    g_ranks = start_ranks(&argc, &argv);
  } catch (const InputError& error) {
    return launched().rank == 0 ? complain(error.what()) : kBadUsage;
  }
  const Ending ending = ending_of({argv + 1, argv + argc});
  if (!g_ranks->alone())
    end_together(*g_ranks, ending);
  else
    to_stderr(ending.line);
  g_ranks.reset();
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    return complain(fmt::format("standard output: cannot be written: {}", std::strerror(errno)));
  return ending.code;
}
