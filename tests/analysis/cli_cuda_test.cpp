#include "data/synth.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"
#include "tests/support/process.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

using namespace kvreplay::test;
using Json = nlohmann::json;

namespace {

ProcessResult run_on_device(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), device_program());
  return run(arguments);
}

/// As KVREPLAY_EMULATION_FAILURE has it, for the programs that are started meanwhile.
class FailingDevice {
 public:
  explicit FailingDevice(const std::string& at) { ::setenv(kName, at.c_str(), 1); }
  ~FailingDevice() { ::unsetenv(kName); }
  FailingDevice(const FailingDevice&) = delete;
  FailingDevice& operator=(const FailingDevice&) = delete;

 private:
  static constexpr const char* kName = "KVREPLAY_EMULATION_FAILURE";
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("where there is a device, cuda computes there and says what does not", "[cuda][cli]") {
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
      {{"evict", "--policy", "snapkv", "--bits", "4"}, "on the CPU: rankings, pruning and formats (evict)"},
      {{"budget"}, "on the CPU: rankings (budget)"},
      {{"channels"}, "on the CPU: searches for subsets (channels)"},
      {{"analyze", "--only", "tokens,evict,budget"}, "on the CPU: rankings (evict), rankings (budget)"},
  };
  for (const Run& what : runs) {
    std::vector<std::string> arguments = what.arguments;
    arguments.insert(arguments.end(), {dump, "--out", temp / "r", "--force", "--backend", "cuda"});
    const ProcessResult done = run_on_device(arguments);
    INFO(what.arguments.front() << ": " << done.err);
    REQUIRE(done.code == 0);
    const Json run_file = Json::parse(file_text(temp / "r" / "run.json"));
    CHECK(run_file["backend"] == "cuda");
    CHECK(run_file["backend_note"] == what.note);
    CHECK(contains(done.out, "note: computed on a CUDA device; " + what.note) == !what.note.empty());
  }
  const ProcessResult verified = run_on_device({"verify", dump, "--backend", "cuda", "--tokens", "2"});
  INFO(verified.out << verified.err);
  CHECK(verified.code == 0);
  CHECK(contains(verified.out, "CUDA backend"));
  CHECK_FALSE(contains(verified.out, "float32 backend"));
}

TEST_CASE("float64 stays on the CPU where there is a device", "[cuda][cli]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  kvreplay::write_synthetic_dump(dump, {.layers = 1, .head_dim = 8, .prompt = 40, .decode = 5});
  REQUIRE(run_on_device({"channels", dump, "--out", temp / "r", "--precision", "f64"}).code == 0);
  const Json run_file = Json::parse(file_text(temp / "r" / "run.json"));
  CHECK(run_file["backend"] == "cpu");
  CHECK(run_file["backend_note"] == "auto: float64 is computed on the CPU");
}

TEST_CASE("tensor products say how near they come to float32", "[cuda][cli]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  kvreplay::write_synthetic_dump(dump, {.layers = 2, .head_dim = 16, .prompt = 80, .decode = 5});
  const ProcessResult done =
      run_on_device({"tokens", dump, "--out", temp / "r", "--precision", "tensor", "--window", "80"});
  INFO(done.out << done.err);
  REQUIRE(done.code == 0);
  CHECK(contains(done.out, "tensor against f32 (KV head 0 of each layer, the worst metric): differs by "));
  const Json summary = Json::parse(file_text(temp / "r" / "summary.json"));
  CHECK(summary["precision"] == "tensor");
  const Json& near = summary["totals"]["tensor_against_f32"];
  CHECK(near["difference"] > 1e-6);
  CHECK(near["difference"] < 1e-2);
  CHECK(near["spearman"] > 0.99);
  REQUIRE(run_on_device({"verify", dump, "--precision", "tensor"}).code == 2);
  const ProcessResult on_cpu =
      run_on_device({"tokens", dump, "--out", temp / "s", "--precision", "tensor", "--backend", "cpu"});
  CHECK(on_cpu.code == 2);
  CHECK(contains(on_cpu.err, "--precision tensor: it is computed on a GPU; use f32 or f64"));
}

TEST_CASE("a device that fails leaves the run to the CPU, or ends it in one line", "[cuda][cli][played]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  kvreplay::write_synthetic_dump(dump, {.layers = 2, .head_dim = 8, .prompt = 40, .decode = 5});
  const auto command = [&](const std::string& out, const std::string& backend) {
    return std::vector<std::string>{"analyze", dump,       "--only",  "tokens,evict", "--policy", "snapkv",
                                    "--out",   temp / out, "--force", "--backend",    backend};
  };
  REQUIRE(run_on_device(command("cpu", "cpu")).code == 0);
  for (const std::string at : {"find:1", "code:1", "allocate:1", "copy:1", "launch:1", "synchronize:1"}) {
    INFO(at);
    const std::string error = "CUDA: the emulated device fails at " + at.substr(0, at.find(':'));
    const FailingDevice device(at);
    const ProcessResult done = run_on_device(command("auto", "auto"));
    INFO(done.out << done.err);
    REQUIRE(done.code == 0);
    CHECK(done.err.empty());
    CHECK(contains(done.out, error));
    const Json run_file = Json::parse(file_text(temp / "auto" / "run.json"));
    const bool at_start = at == "find:1" || at == "code:1";
    CHECK(run_file["backend"] == (at_start ? "cpu" : "cuda"));
    CHECK(run_file["device"].is_null() == at_start);
    CHECK(run_file["backend_note"] ==
          (at_start ? "auto: " + error
                    : "on the CPU: rankings (evict); everything on the CPU since the device failed (" +
                          error + ")"));
    for (const char* file : {"heads.csv", "agreement.csv", "evictions.csv", "summary.json"})
      CHECK(file_text(temp / "auto" / file) == file_text(temp / "cpu" / file));

    const ProcessResult strict = run_on_device(command("cuda", "cuda"));
    CHECK(strict.code == 2);
    CHECK(strict.err == (at_start ? "kvreplay: --backend cuda: " + error + "; use auto or cpu\n"
                                  : "kvreplay: " + error + "; use --backend auto or cpu\n"));
    if (at_start) continue;
    const ProcessResult verified = run_on_device({"verify", dump, "--tokens", "2", "--quiet"});
    CHECK(verified.code == 2);
    CHECK(verified.err == "kvreplay: " + error + "; use --backend cpu\n");
  }

  // In the middle of a run every table is whole.
  const FailingDevice device("launch:9");
  const ProcessResult done = run_on_device(command("auto", "auto"));
  INFO(done.out << done.err);
  REQUIRE(done.code == 0);
  CHECK(contains(done.out, "everything on the CPU since the device failed"));
  for (const char* file : {"heads.csv", "agreement.csv", "evictions.csv"}) {
    const std::string got = file_text(temp / "auto" / file), want = file_text(temp / "cpu" / file);
    CHECK(std::count(got.begin(), got.end(), '\n') == std::count(want.begin(), want.end(), '\n'));
    CHECK_FALSE(contains(got, "nan"));
  }
}

TEST_CASE("auto computes on a device where there is one", "[cuda][cli][played]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  kvreplay::write_synthetic_dump(dump, {.layers = 1, .head_dim = 8, .prompt = 40, .decode = 5});
  const ProcessResult done = run_on_device({"tokens", dump, "--out", temp / "r", "--backend", "auto"});
  INFO(done.err);
  REQUIRE(done.code == 0);
  CHECK(Json::parse(file_text(temp / "r" / "run.json"))["backend"] == "cuda");
}

TEST_CASE("what little a run computes is left to the CPU where the choice is the program's", "[cuda][cli]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  kvreplay::write_synthetic_dump(
      dump, {.layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 8, .prompt = 12, .decode = 2});
  const auto backend = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"tokens", dump, "--out", temp / "r", "--force"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProcessResult done = run_on_device(arguments);
    INFO(done.err);
    REQUIRE(done.code == 0);
    return Json::parse(file_text(temp / "r" / "run.json"));
  };
  const Json left = backend({});
  CHECK(left["backend"] == "cpu");
  CHECK(left["backend_note"] == "auto: it is done there before a GPU has started");
  CHECK(left["device"].is_null());
  CHECK(backend({"--backend", "cuda"})["backend"] == "cuda");
  CHECK(backend({"--precision", "tensor"})["backend"] == "cuda");
  CHECK(backend({"--device", "0"})["device"]["numbers"] == Json{0});
}

TEST_CASE("run.json, the screen and the report name the GPU and the code that it runs",
          "[cuda][cli][played]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  kvreplay::write_synthetic_dump(dump, {.layers = 1, .head_dim = 8, .prompt = 40, .decode = 5});
  const ProcessResult done = run_on_device({"tokens", dump, "--out", temp / "r"});
  REQUIRE(done.code == 0);
  CHECK(contains(done.out, " threads, the processor, as a GPU)\n"));
  CHECK(Json::parse(file_text(temp / "r" / "run.json"))["device"] ==
        Json({{"name", "the processor, as a GPU"},
              {"numbers", {1}},
              {"capability", "9.0"},
              {"memory", 1 << 30},
              {"code", "9.0"},
              {"driver", "13.0"},
              {"runtime", "12.4"}}));
  REQUIRE(run_on_device({"report", temp / "r"}).code == 0);
  CHECK(contains(
      file_text(temp / "r" / "report" / "index.html"),
      "cuda: the processor, as a GPU, compute capability 9.0, code for 9.0, driver&#39;s CUDA 13.0"));

  const ProcessResult none = run_on_device({"tokens", dump, "--out", temp / "none", "--device", "7"});
  CHECK(none.code == 2);
  CHECK(none.err == "kvreplay: --device 7: GPU 7 is none of those that there are\n");
}

TEST_CASE("info --devices lists the GPUs and what runs on them", "[cuda][cli][played]") {
  CHECK(run_on_device({"info", "--devices"}).out ==
        "GPU  name                          capability  memory   code  usable\n"
        "0    the processor, as an old GPU  8.0         1.0 GiB  8.0   yes\n"
        "1    the processor, as a GPU       9.0         1.0 GiB  9.0   yes\n"
        "CUDA 12.4; the driver supports 13.0\n");
  const Json all = Json::parse(run_on_device({"info", "--devices", "--json"}).out);
  CHECK(all["why_none"] == "");
  CHECK(all["devices"][1]["name"] == "the processor, as a GPU");
  CHECK(all["devices"][1]["usable"] == true);
  const FailingDevice device("code:2");  // the first is asked before
  const ProcessResult failing = run_on_device({"info", "--devices"});
  CHECK(failing.code == 0);
  CHECK(contains(failing.out, "none  no: CUDA: the emulated device fails at code\n"));
}
