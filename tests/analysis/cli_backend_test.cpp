#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <vector>

using namespace kvreplay::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

const std::vector<std::string> kIntoFolder = {"tokens", "evict", "budget", "channels", "analyze"};

/// Why this build finds no device here; the tests hide what there is (kvreplay_program.cpp).
std::string why_none(const std::string& note) {
  const std::string head = "auto: ";
  INFO(note);
  REQUIRE(note.rfind(head, 0) == 0);
  return note.substr(head.size());
}

std::vector<std::string> arguments(const std::string& command, const TempDir& temp, const std::string& out,
                                   const std::vector<std::string>& more = {}) {
  std::vector<std::string> all = {command, temp / "dump"};
  if (!out.empty()) all.insert(all.end(), {"--out", temp / out});
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace

TEST_CASE("without a device, cuda is refused in one line and auto says why it takes the CPU",
          "[cli][backend]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  for (const std::string& command : kIntoFolder) {
    INFO(command);
    const ProcessResult done = succeed(arguments(command, temp, command));
    CHECK(done.err.empty());
    const Json run_file = Json::parse(file_text(temp / command / "run.json"));
    CHECK(run_file["backend"] == "cpu");
    const std::string why = why_none(run_file["backend_note"]);
    CHECK(lines(why) == 0);
    CHECK(contains(done.out, "note: computed on the CPU; auto: " + why + "\n"));
    const std::string refused = complaint(arguments(command, temp, "none", {"--backend", "cuda"}));
    // With CUDA, no device is sought for what little this is.
    if (why != "it is done there before a GPU has started")
      CHECK(refused == "kvreplay: --backend cuda: " + why + "; use auto or cpu\n");
    CHECK(refused.find("kvreplay: --backend cuda: ") == 0);
    CHECK_FALSE(fs::exists(temp / "none"));

    const ProcessResult asked = succeed(arguments(command, temp, command + "-cpu", {"--backend", "cpu"}));
    CHECK_FALSE(contains(asked.out, "computed on"));
    CHECK(Json::parse(file_text(temp / (command + "-cpu") / "run.json"))["backend_note"] == "");
    CHECK(difference(temp / command, temp / (command + "-cpu")).empty());
  }
  const ProcessResult verified = run_kvreplay(arguments("verify", temp, ""));
  CHECK(verified.code == 0);
  CHECK(contains(verified.out, "note: computed on the CPU; auto: "));
  CHECK(contains(verified.out, "float32 backend"));
  CHECK(contains(complaint(arguments("verify", temp, "", {"--backend", "cuda"})), "; use auto or cpu"));
}

TEST_CASE("float64 is the CPU's, and no device is asked for it", "[cli][backend]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  for (const char* command : {"tokens", "evict", "budget", "channels", "analyze", "verify"}) {
    const std::string out = std::string(command) == "verify" ? "" : "r";
    CHECK(complaint(arguments(command, temp, out, {"--backend", "cuda", "--precision", "f64"})) ==
          "kvreplay: --backend cuda: float64 is computed on the CPU; use auto or cpu\n");
  }
  CHECK_FALSE(fs::exists(temp / "r"));
  succeed(arguments("evict", temp, "r", {"--precision", "f64"}));
  CHECK(Json::parse(file_text(temp / "r" / "run.json"))["backend_note"] ==
        "auto: float64 is computed on the CPU");
}

TEST_CASE("every command that computes has the same --backend", "[cli][backend]") {
  std::string line;
  for (const char* command : {"tokens", "evict", "budget", "channels", "analyze", "verify"}) {
    const std::string help = run_kvreplay({command, "--help"}).out;
    const std::size_t at = help.find("--backend");
    INFO(command);
    REQUIRE(at != std::string::npos);
    const std::string found = help.substr(at, help.find("--precision", at) - at);
    if (line.empty()) line = found;
    CHECK(found == line);
  }
  CHECK(contains(line, "auto (a GPU where there is one), cpu or cuda"));
}
