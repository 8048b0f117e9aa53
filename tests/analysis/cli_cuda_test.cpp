#include "data/synth.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"
#include "tests/support/process.hpp"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

using namespace kvreplay::test;
using Json = nlohmann::json;

namespace {

ProcessResult run_emulated(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), device_program());
  return run(arguments);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("where there is a device, cuda and auto compute there and say what does not", "[cuda][cli]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  kvreplay::write_synthetic_dump(dump, {.layers = 1, .head_dim = 8, .prompt = 40, .decode = 5});
  struct Run {
    std::vector<std::string> arguments;
    std::string note;
  };
  const std::vector<Run> runs = {
      {{"tokens"}, ""},
      {{"tokens", "--metrics", "keydiff,leverage"}, "on the CPU: leverage (tokens)"},
      {{"evict", "--policy", "snapkv"}, "on the CPU: rankings (evict)"},
      {{"evict", "--policy", "snapkv,greedy_exact", "--phase", "prefill,decode", "--budget", "9"},
       "on the CPU: rankings (evict)"},
      {{"evict", "--policy", "snapkv", "--bits", "4"},
       "on the CPU: rankings, outputs over compressed caches (evict)"},
      {{"budget"}, "on the CPU: rankings (budget)"},
      {{"channels"}, "on the CPU: searches for subsets, outputs over pruned keys (channels)"},
      {{"analyze", "--only", "tokens,evict,budget"}, "on the CPU: rankings (evict), rankings (budget)"},
  };
  for (const Run& what : runs)
    for (const std::string backend : {"cuda", "auto"}) {
      if (backend == "auto" && what.arguments.front() != "tokens") continue;
      std::vector<std::string> arguments = what.arguments;
      arguments.insert(arguments.end(), {dump, "--out", temp / "r", "--force", "--backend", backend});
      const ProcessResult done = run_emulated(arguments);
      INFO(what.arguments.front() << ", " << backend << ": " << done.err);
      REQUIRE(done.code == 0);
      const Json run_file = Json::parse(file_text(temp / "r" / "run.json"));
      CHECK(run_file["backend"] == "cuda");
      CHECK(run_file["backend_note"] == what.note);
      CHECK(contains(done.out, "note: computed on a CUDA device; " + what.note) == !what.note.empty());
    }
  const ProcessResult verified = run_emulated({"verify", dump, "--backend", "cuda", "--tokens", "2"});
  INFO(verified.out << verified.err);
  CHECK(verified.code == 0);
  CHECK(contains(verified.out, "CUDA backend"));
  CHECK_FALSE(contains(verified.out, "float32 backend"));
}

TEST_CASE("float64 stays on the CPU where there is a device", "[cuda][cli]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  kvreplay::write_synthetic_dump(dump, {.layers = 1, .head_dim = 8, .prompt = 40, .decode = 5});
  REQUIRE(run_emulated({"channels", dump, "--out", temp / "r", "--precision", "f64"}).code == 0);
  const Json run_file = Json::parse(file_text(temp / "r" / "run.json"));
  CHECK(run_file["backend"] == "cpu");
  CHECK(run_file["backend_note"] == "auto: float64 is computed on the CPU");
}

TEST_CASE("tensor products say how near they come to float32", "[cuda][cli]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  kvreplay::write_synthetic_dump(dump, {.layers = 2, .head_dim = 16, .prompt = 80, .decode = 5});
  const ProcessResult done =
      run_emulated({"tokens", dump, "--out", temp / "r", "--precision", "tensor", "--window", "80"});
  INFO(done.out << done.err);
  REQUIRE(done.code == 0);
  CHECK(contains(done.out, "tensor against f32 (KV head 0 of each layer, the worst metric): differs by "));
  const Json summary = Json::parse(file_text(temp / "r" / "summary.json"));
  CHECK(summary["precision"] == "tensor");
  const Json& near = summary["totals"]["tensor_against_f32"];
  CHECK(near["difference"] > 1e-6);
  CHECK(near["difference"] < 1e-2);
  CHECK(near["spearman"] > 0.99);
  REQUIRE(run_emulated({"verify", dump, "--precision", "tensor"}).code == 2);
  const ProcessResult on_cpu =
      run_emulated({"tokens", dump, "--out", temp / "s", "--precision", "tensor", "--backend", "cpu"});
  CHECK(on_cpu.code == 2);
  CHECK(contains(on_cpu.err, "--precision tensor: it is computed on a GPU; use f32 or f64"));
}
