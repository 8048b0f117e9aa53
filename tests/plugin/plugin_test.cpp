#include "data/error.hpp"
#include "data/synth.hpp"
#include "sim/backend/backend_cuda.hpp"
#include "sim/cuda/runtime.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/places.hpp"
#include "tests/support/process.hpp"
#include "tests/support/random_group.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

/// For the programs that are started meanwhile, and for what reads it here first.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};
constexpr const char* kPlugin = "KVREPLAY_CUDA_PLUGIN";

std::string written_dump(const TempDir& temp) {
  write_synthetic_dump(temp / "dump", {.layers = 1, .head_dim = 8, .prompt = 40, .decode = 5});
  return temp / "dump";
}

/// The devices that a program finds, as info says it.
Json devices(const std::string& program) {
  const ProcessResult done = run({program, "info", "--devices", "--json"});
  INFO(done.err);
  REQUIRE(done.code == 0);
  return Json::parse(done.out);
}

}  // namespace

TEST_CASE("a plug-in's results are those of the same backend in the program", "[plugin]") {
  const TempDir temp;
  const std::string dump = written_dump(temp);
  const Variable plugin(kPlugin, KVREPLAY_PLUGIN);
  for (const std::string command : {"tokens", "evict"}) {
    const auto results = [&](const std::string& program, const std::string& out) {
      const ProcessResult done =
          run({program, command, dump, "--out", temp / out, "--backend", "cuda", "--force"});
      INFO(done.err);
      REQUIRE(done.code == 0);
      CHECK(Json::parse(file_text(temp / out / "run.json"))["backend"] == "cuda");
    };
    results(KVREPLAY_LOADING_PROGRAM, "loaded");
    results(device_program(), "linked");
    std::size_t compared = 0;
    for (const auto& entry : fs::recursive_directory_iterator(temp / "linked")) {
      if (!entry.is_regular_file() || entry.path().filename() == "run.json") continue;
      INFO(entry.path());
      CHECK(file_text(entry.path()) ==
            file_text(temp / "loaded" / entry.path().lexically_relative(temp / "linked").string()));
      ++compared;
    }
    CHECK(compared > 2);
  }
}

TEST_CASE("a plug-in that does not fit is refused in one line, and auto takes the CPU", "[plugin]") {
  const TempDir temp;
  const std::string dump = written_dump(temp), text = temp / "text.so", none = temp / "none.so";
  std::ofstream(text) << "no library\n";
  struct Case {
    std::string file, why;
  };
  const std::vector<Case> cases = {
      {text, text + ": file too short"},
      {none, none + ": cannot open shared object file: No such file or directory"},
      {KVREPLAY_OLDER_PLUGIN,
       std::string(KVREPLAY_OLDER_PLUGIN) + " is built for kvreplay 0.0.1, this is kvreplay "},
  };
  for (const Case& each : cases) {
    const Variable plugin(kPlugin, each.file);
    const std::string why = "the CUDA plug-in is not loaded: " + each.why;
    const ProcessResult refused =
        run({KVREPLAY_LOADING_PROGRAM, "tokens", dump, "--out", temp / "none", "--backend", "cuda"});
    INFO(refused.err);
    CHECK(refused.code == 2);
    CHECK(refused.err.find("kvreplay: --backend cuda: " + why) == 0);
    CHECK(std::ranges::count(refused.err, '\n') == 1);
    const ProcessResult done =
        run({KVREPLAY_LOADING_PROGRAM, "tokens", dump, "--out", temp / "auto", "--force"});
    REQUIRE(done.code == 0);
    const Json run_file = Json::parse(file_text(temp / "auto" / "run.json"));
    CHECK(run_file["backend"] == "cpu");
    CHECK(run_file["backend_note"].get<std::string>().find("auto: " + why) == 0);
    const Json found = devices(KVREPLAY_LOADING_PROGRAM);
    CHECK(found["devices"].empty());
    CHECK(found["why_none"].get<std::string>().find(why) == 0);
  }
}

TEST_CASE("a plug-in is found beside the program, and beside its Python package", "[plugin]") {
  const TempDir temp;
  const fs::path package = fs::path(temp / "site") / "kvreplay", program = package / "bin" / "kvreplay",
                 beside = package / "bin" / "libkvreplay_cuda.so",
                 other = fs::path(temp / "site") / "kvreplay_cuda12" / "libkvreplay_cuda.so";
  fs::create_directories(program.parent_path());
  fs::create_directories(other.parent_path());
  fs::copy_file(KVREPLAY_LOADING_PROGRAM, program);
  CHECK(devices(program)["why_none"] == "this build has no CUDA backend, and no plug-in with one was found");
  fs::create_symlink(KVREPLAY_PLUGIN, other);
  CHECK(devices(program)["devices"].empty());  // no package without this:
  std::ofstream(package / "__init__.py") << "\n";
  CHECK(devices(program)["devices"].size() == 2);
  fs::remove(other);
  fs::create_symlink(KVREPLAY_PLUGIN, beside);
  CHECK(devices(program)["devices"].size() == 2);
}

TEST_CASE("what is thrown in a plug-in is caught as what it is", "[plugin]") {
  const Variable plugin(kPlugin, KVREPLAY_PLUGIN), memory("KVREPLAY_EMULATION_MEMORY", "16");
  const HeadGroup<float> group = to_float(random_group({}));
  TokenOptions options;
  options.metrics = {TokenMetric::exact_remove};
  Workers workers(2);
  const auto errors = [&](const Backend& backend, const HeadGroup<float>& of) {
    return backend.token_metrics(of, options, workers)[TokenMetric::exact_remove];
  };
  const auto strict = cuda_backend(false), lenient = cuda_backend(true);
  CHECK_THROWS_AS(errors(*strict, group), cuda::OutOfDeviceMemory);
  CHECK(same_bytes(errors(*lenient, group), errors(cpu_backend(), group)));
  CHECK(lenient->fell_back() == 1);
  CHECK_THROWS_AS(cuda_backend(false, Products::f32, {.number = 2}), cuda::DeviceError);

  const HeadGroup<float> large = to_float(random_group({.value_offset = 1e38}));
  CHECK_THROWS_AS(errors(cpu_backend(), large), InputError);
  CHECK_THROWS_AS(errors(*lenient, large), InputError);
  workers.stop();
  CHECK_THROWS_AS(errors(*lenient, group), Interrupted);
}
