#include "tests/analysis/kvreplay_program.hpp"
#include "tests/support/catch.hpp"

#include <chrono>
#include <csignal>
#include <thread>

using namespace kvreplay::test;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kSecondsToStop = 5;  // sanitizers hold signals back and slow everything down
#else
constexpr double kSecondsToStop = 1;
#endif

/// A dump on which the run below takes seconds.
void make_dump(const std::string& folder) {
  succeed({"synth", folder, "--layers", "12", "--q-heads", "4", "--kv-heads", "2", "--head-dim", "32",
           "--prompt", "2048", "--decode", "16", "--dtype", "float16"});
}

std::vector<std::string> arguments(const std::string& dump, const std::string& out) {
  return {"tokens",      dump,  "--out",     out, "--window", "2048",
          "--precision", "f64", "--threads", "2", "--quiet"};
}

}  // namespace

TEST_CASE("an interrupted run stops within a second and goes on to the same bytes", "[cli][interrupt]") {
  const TempDir temp;
  const std::string dump = temp / "dump", out = temp / "r";
  make_dump(dump);
  succeed(arguments(dump, temp / "whole"));

  auto command = arguments(dump, out);
  command.push_back("--resume");
  int signals = 0;
  for (const auto& [signal, layer] : {std::pair{SIGINT, "layer_00"}, {SIGTERM, "layer_02"}}) {
    Process process(kvreplay_command(command));
    if (!wait_for(fs::path(out) / ".kvreplay/layers" / (std::string(layer) + ".figures"), process)) break;
    const auto begin = Clock::now();
    process.send(signal);
    const ProcessResult stopped = process.wait();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    INFO(stopped.err);
    if (stopped.code == 0) break;  // it was done before the signal came
    ++signals;
    CHECK(stopped.code == 130);
    CHECK(seconds < kSecondsToStop);
    CHECK(lines(stopped.err) == 1);
    CHECK(contains(stopped.err, "--resume"));
    CHECK_FALSE(fs::exists(out + "/summary.json"));
    CHECK_FALSE(has_half_written(out));
  }
  CHECK(signals == 2);
  CHECK(run_kvreplay(command).code == 0);
  CHECK(difference(out, temp / "whole").empty());
}

TEST_CASE("a killed run goes on to the same bytes", "[cli][interrupt]") {
  const TempDir temp;
  const std::string dump = temp / "dump", out = temp / "r";
  make_dump(dump);
  succeed(arguments(dump, temp / "whole"));
  {
    Process process(kvreplay_command(arguments(dump, out)));
    REQUIRE(wait_for(out + "/.kvreplay/layers/layer_01.figures", process));
    process.send(SIGKILL);
    CHECK(process.wait().code == 128 + SIGKILL);
  }
  auto command = arguments(dump, out);
  command.push_back("--resume");
  CHECK(run_kvreplay(command).code == 0);
  CHECK(difference(out, temp / "whole").empty());
}

TEST_CASE("verify stops on a signal too", "[cli][interrupt]") {
  Process process(kvreplay_command({"verify", sample_dump(), "--tokens", "0"}));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const auto begin = Clock::now();
  process.send(SIGINT);
  const ProcessResult stopped = process.wait();
  CHECK(std::chrono::duration<double>(Clock::now() - begin).count() < kSecondsToStop);
  CHECK(stopped.code == 130);
  CHECK(lines(stopped.err) == 1);
}

TEST_CASE("a second process on the same result folder is refused and changes nothing", "[cli][interrupt]") {
  const TempDir temp;
  const std::string dump = temp / "dump", out = temp / "r";
  make_dump(dump);
  succeed(arguments(dump, temp / "whole"));
  Process first(kvreplay_command(arguments(dump, out)));
  REQUIRE(wait_for(out + "/.kvreplay/layers/layer_00.figures", first));
  for (const char* how : {"--resume", "--force"}) {
    auto command = arguments(dump, out);
    command.push_back(how);
    const ProcessResult second = run_kvreplay(command);
    REQUIRE(first.running());
    CHECK(second.code == 2);
    CHECK(lines(second.err) == 1);
    CHECK(contains(second.err, out + ": another kvreplay is writing here"));
  }
  CHECK(first.wait().code == 0);
  CHECK(difference(out, temp / "whole").empty());
  CHECK_FALSE(fs::exists(out + "/.kvreplay"));
}
