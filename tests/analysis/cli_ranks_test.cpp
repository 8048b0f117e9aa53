#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <unistd.h>

using namespace kvreplay::test;
namespace fs = std::filesystem;

// Several ranks on this machine, by mpirun. Every case says skipped where the program or the machine has no
// MPI.

namespace {

const std::string kMpirun = mpirun();

bool skipped() {
  if (!kMpirun.empty() && ::access(kMpirun.c_str(), X_OK) == 0) return false;
  WARN("skipped: no MPI, or no mpirun");
  return true;
}

/// More ranks than cores, as root and in containers that forbid one process to read another's memory.
std::vector<std::string> ranks_command(int ranks, std::vector<std::string> command) {
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  ::setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
  ::setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 1);
  ::setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 1);
  command.insert(command.begin(), {kMpirun, "-n", std::to_string(ranks)});
  return command;
}

ProcessResult run_ranks(int ranks, const std::vector<std::string>& arguments) {
  return run(ranks_command(ranks, kvreplay_command(arguments)));
}

/// The program's own lines on standard error, without its launcher's.
std::vector<std::string> own_lines(const std::string& err) {
  std::vector<std::string> own;
  std::istringstream in(err);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("kvreplay: ")) own.push_back(line);
  return own;
}

void make_dump(const std::string& folder, std::vector<std::string> options) {
  options.insert(options.begin(), {"synth", folder});
  succeed(options);
}

/// A dump on which the run below takes a fifth of a second a layer, or with 3072 tokens a tenth.
void make_long_dump(const std::string& folder, int layers, int prompt = 4096) {
  make_dump(folder, {"--layers", std::to_string(layers), "--q-heads", "4", "--kv-heads", "2", "--head-dim",
                     "32", "--prompt", std::to_string(prompt), "--decode", "16", "--dtype", "float16"});
}
std::vector<std::string> long_run(const std::string& dump, const std::string& out) {
  return {"tokens", dump, "--out", out, "--window", "all", "--precision", "f64", "--quiet"};
}

/// The process that is rank `rank` of the run into `out`.
std::optional<pid_t> process_of(int rank, const std::string& out) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string command = file_text(entry.path() / "cmdline"),
                      environment = file_text(entry.path() / "environ");
    if (contains(command, "tokens") && contains(command, out) &&
        contains(environment, "OMPI_COMM_WORLD_RANK=" + std::to_string(rank)))
      return static_cast<pid_t>(std::stol(entry.path().filename().string()));
  }
  return std::nullopt;
}

bool any_layer(const std::string& out, Process& process) {
  const fs::path figures = out + "/.kvreplay/layers";
  while (process.running()) {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(figures, none))
      if (entry.path().extension() == ".figures") return true;
    ::usleep(1000);
  }
  return false;
}

}  // namespace

TEST_CASE("ranks share layers, and the bytes are those of one process", "[cli][ranks]") {
  if (skipped()) return;
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_dump(dump, {"--layers", "2", "--q-heads", "8", "--kv-heads", "4", "--head-dim", "16", "--prompt",
                   "120", "--decode", "12"});
  const std::vector<std::vector<std::string>> commands = {
      {"analyze", dump},
      {"analyze", dump, "--precision", "f64"},
      {"tokens", dump, "--per-query-head", "--shard", "1/2"},
      {"evict", dump, "--policy", "snapkv,h2o", "--phase", "prefill,decode", "--budget", "32",
       "--per-query-head"},
      {"evict", dump, "--policy", "snapkv", "--diff", "paper,official,kvpress"},
      {"evict", dump, "--policy", "none,snapkv", "--channels", "iap:0.5", "--bits", "4"},
      {"channels", dump, "--semantics", "official", "--method", "think,output,convex", "--png"},
      {"budget", dump}};
  const std::vector<std::string>& command = commands[GENERATE(range(0u, 8u))];
  INFO(command.front());
  const auto into = [&](const std::string& out) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), {"--out", out, "--quiet"});
    return arguments;
  };
  const ProcessResult one = succeed(into(temp / "one"));
  // There are two layers: of three ranks one has none. Once many more ranks than layers, once as many.
  const std::vector<int> sizes = &command == &commands.front() ? std::vector{2, 3, 7} : std::vector{3};
  for (const int ranks : sizes) {
    const std::string out = temp / std::to_string(ranks);
    const ProcessResult done = run_ranks(ranks, into(out));
    INFO(ranks << " ranks: " << done.err);
    CHECK(done.code == 0);
    CHECK(done.out.empty());
    CHECK(difference(out, temp / "one").empty());
    CHECK(contains(file_text(out + "/run.json"), "\"ranks\": " + std::to_string(ranks)));
  }
}

TEST_CASE("ranks analyse the sample as one process does, and one of them speaks", "[cli][ranks]") {
  if (skipped()) return;
  const TempDir temp;
  const ProcessResult one = run_kvreplay({"analyze", sample_dump(), "--out", temp / "one"});
  const ProcessResult three = run_ranks(3, {"analyze", sample_dump(), "--out", temp / "three"});
  INFO(three.err);
  CHECK(three.code == 0);
  CHECK(difference(temp / "three", temp / "one").empty());
  const auto report = [](const std::string& out) { return out.substr(0, out.find("\nresults: ")); };
  CHECK(report(three.out) == report(one.out));
  CHECK(contains(three.out, "3 ranks x "));
  const std::vector<std::string> again{"analyze", sample_dump(), "--out", temp / "three", "--resume"};
  const ProcessResult finished = run_ranks(2, again);
  CHECK(contains(finished.out, (temp / "three").string() + ": already finished, nothing left to do\n"));
  CHECK(finished.out == run_kvreplay(again).out);
  CHECK(run_ranks(2, {"info", sample_dump()}).out == run_kvreplay({"info", sample_dump()}).out);
  CHECK(run_ranks(2, {"--version"}).out == run_kvreplay({"--version"}).out);
}

TEST_CASE("ranks go through several dumps, and one of them writes what all say", "[cli][ranks]") {
  if (skipped()) return;
  const TempDir temp;
  for (const char* name : {"a", "b"})
    make_dump(temp / name, {"--prompt", name[0] == 'a' ? "90" : "120", "--decode", "8", "--head-dim", "16"});
  const auto into = [&](const std::string& out) {
    return std::vector<std::string>{"evict", temp / "a", temp / "b", "--out", out, "--policy", "tova,snapkv"};
  };
  succeed(into(temp / "one"));
  const ProcessResult three = run_ranks(3, into(temp / "three"));
  INFO(three.err);
  CHECK(three.code == 0);
  CHECK(own_lines(three.err).empty());
  CHECK(lines(three.out) == lines(run_kvreplay(into(temp / "again")).out));
  for (const char* name : {"a", "b"}) CHECK(difference(temp / "three" / name, temp / "one" / name).empty());
  for (const char* name : {"dumps.csv", "evictions_over_dumps.csv", "summary.json"})
    CHECK(file_text(temp / "three" / name) == file_text(temp / "one" / name));
  std::vector<std::string> resumed = into(temp / "three");
  resumed.emplace_back("--resume");
  const ProcessResult finished = run_ranks(2, resumed);
  CHECK(contains(finished.out, (temp / "three").string() + ": already finished, nothing left to do\n"));
  CHECK(finished.out == run_kvreplay(resumed).out);
}

TEST_CASE("ranks divide budgets by the profiles of others", "[cli][ranks]") {
  if (skipped()) return;
  const TempDir temp;
  for (const char* name : {"a", "b"}) make_small_dump(temp / name, {"--seed", name[0] == 'a' ? "1" : "2"});
  make_small_dump(temp / "c", {"--seed", "3", "--prompt", "47"});
  const auto budget = [&](const std::string& out, bool all) {
    std::vector<std::string> command = {"budget", temp / "a", temp / "b", "--out", out, "--quiet"};
    if (all) command.insert(command.end(), {temp / "c", "--resume"});
    return command;
  };
  succeed(budget(temp / "one", true));
  for (const bool all : {false, true}) {  // made, then made anew of more dumps
    const ProcessResult ranks = run_ranks(3, budget(temp / "ranks", all));
    INFO(ranks.err);
    CHECK(ranks.code == 0);
    CHECK(own_lines(ranks.err).empty());
  }
  CHECK(fs::exists(temp / "ranks/leave_one_out/c/budgets.csv"));
  CHECK(difference(temp / "ranks", temp / "one").empty());
}

TEST_CASE("more ranks than heads", "[cli][ranks]") {
  if (skipped()) return;
  const TempDir temp;
  make_small_dump(temp / "dump");  // 2 layers of 2 heads
  succeed({"analyze", temp / "dump", "--out", temp / "one", "--quiet"});
  const ProcessResult done = run_ranks(6, {"analyze", temp / "dump", "--out", temp / "six", "--quiet"});
  INFO(done.err);
  CHECK(done.code == 0);
  CHECK(difference(temp / "six", temp / "one").empty());
}

TEST_CASE("ranks merge parts", "[cli][ranks][merge]") {
  if (skipped()) return;
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_small_dump(dump);
  succeed({"analyze", dump, "--out", temp / "one", "--quiet"});
  for (const char* part : {"1/2", "2/2"})
    REQUIRE(
        run_ranks(2, {"analyze", dump, "--out", temp / std::string(1, part[0]), "--shard", part, "--quiet"})
            .code == 0);
  const ProcessResult merged =
      run_ranks(3, {"merge", temp / "1", temp / "2", "--out", temp / "m", "--quiet"});
  INFO(merged.err);
  CHECK(merged.code == 0);
  CHECK(difference(temp / "m", temp / "one").empty());
}

TEST_CASE("a killed rank ends the run, and any number of ranks resumes it", "[cli][ranks][interrupt]") {
  if (skipped()) return;
  const TempDir temp;
  const std::string dump = temp / "dump", out = temp / "r";
  make_long_dump(dump, 12, 3072);
  succeed(long_run(dump, temp / "one"));
  for (const int signal : {SIGKILL, SIGTERM}) {
    auto command = long_run(dump, out);
    command.emplace_back("--resume");
    Process process(ranks_command(3, kvreplay_command(command)));
    if (!any_layer(out, process)) break;
    if (const auto rank = process_of(2, out)) ::kill(*rank, signal);
    const ProcessResult stopped = process.wait();
    INFO(stopped.err);
    if (stopped.code == 0) break;  // it was done before the signal came
    CHECK(stopped.code == (signal == SIGKILL ? 128 + SIGKILL : 130));
    CHECK(own_lines(stopped.err).size() <= 1);
    CHECK_FALSE(fs::exists(out + "/summary.json"));
    CHECK_FALSE(process_of(0, out));
    CHECK_FALSE(process_of(1, out));
  }
  auto command = long_run(dump, out);
  command.emplace_back("--resume");
  const ProcessResult resumed = run_ranks(2, command);
  INFO(resumed.err);
  CHECK(resumed.code == 0);
  CHECK(difference(out, temp / "one").empty());
}

TEST_CASE("a stopped launcher stops the ranks, which say how to go on", "[cli][ranks][interrupt]") {
  if (skipped()) return;
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_long_dump(dump, 24);  // a launcher lets a second pass before it signals its ranks
  std::string out;
  std::vector<std::string> said;
  // On a busy machine a launcher may kill its ranks before they come to speak.
  for (int attempt = 0; attempt < 4 && said.empty(); ++attempt) {
    out = temp / ("r" + std::to_string(attempt));
    // The launcher stops forwarding the ranks' output as soon as it is told to stop, so the ranks write to a
    // file.
    auto redirected = kvreplay_command(long_run(dump, out));
    redirected.insert(redirected.begin(),
                      {"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>>" + (temp / "said").string()});
    Process process(ranks_command(2, redirected));
    REQUIRE(any_layer(out, process));
    process.send(SIGINT);
    const ProcessResult stopped = process.wait();
    if (fs::exists(out + "/summary.json")) {
      WARN("the run was done before the signal came");
      return;
    }
    INFO(stopped.err);
    CHECK(stopped.code != 0);  // which, the launcher decides
    CHECK_FALSE(has_half_written(out));
    said = own_lines(file_text(temp / "said"));
  }
  REQUIRE(said.size() == 1);
  CHECK(contains(said.front(), "--resume"));
  auto command = long_run(dump, out);
  command.emplace_back("--resume");
  CHECK(run_kvreplay(command).code == 0);
}

TEST_CASE("bad input on ranks is one line and exit code 2", "[cli][ranks]") {
  if (skipped()) return;
  const TempDir temp;
  const std::string dump = temp / "dump", out = temp / "r";
  make_small_dump(dump);
  const auto complaint_of_ranks = [](const std::vector<std::string>& arguments) {
    const ProcessResult done = run_ranks(3, arguments);
    INFO(done.err);
    CHECK(done.code == 2);
    CHECK(done.out.empty());
    const auto said = own_lines(done.err);
    REQUIRE(said.size() == 1);
    return said.front();
  };
  const auto alike = [&](const std::vector<std::string>& arguments) {
    const std::string line = complaint(arguments);
    CHECK(complaint_of_ranks(arguments) + "\n" == (line.ends_with("\n") ? line : line + "\n"));
  };
  alike({"tokens", temp / "none", "--out", out});
  alike({"tokens", dump, "--out", out, "--window", "0"});
  alike({"tokens", dump, "--out", out, "--metrics", "attm"});
  alike({"evict", dump, "--out", dump});
  alike({"bogus"});
  alike({"info", temp / "none"});
  CHECK_FALSE(fs::exists(out));

  // Found while the others compute: the last head of the last layer.
  Npy k = npy_file(dump + "/layer_01/k.npy");
  k.data.replace(k.data.size() - 4, 4, std::string("\x00\x00\xc0\x7f", 4));
  write_file(dump + "/layer_01/k.npy", k.bytes());
  alike({"tokens", dump, "--out", out, "--resume"});
  CHECK(fs::exists(out + "/.kvreplay/layers/layer_00.figures"));
}
