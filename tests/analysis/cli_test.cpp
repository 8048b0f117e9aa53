#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"

#include <nlohmann/json.hpp>

#include <fstream>

using namespace kvreplay::test;
namespace fs = std::filesystem;

TEST_CASE("every command has help with an example", "[cli]") {
  for (const char* command :
       {"info", "synth", "tokens", "evict", "budget", "channels", "analyze", "verify", "compare"}) {
    for (const char* flag : {"--help", "-h"}) {
      const ProcessResult help = run_kvreplay({command, flag});
      INFO(command);
      CHECK(help.code == 0);
      CHECK(help.err.empty());
      CHECK(contains(help.out, "Usage: kvreplay " + std::string(command)));
      CHECK(contains(help.out, "Example"));
      CHECK(contains(help.out, "\n  kvreplay " + std::string(command)));
    }
  }
  const ProcessResult help = run_kvreplay({"--help"});
  CHECK(help.code == 0);
  CHECK(contains(help.out, "Example"));
  for (const char* command : {"info", "synth", "tokens", "evict", "budget", "channels", "analyze", "verify"})
    CHECK(contains(help.out, command));
}

TEST_CASE("the program names its version", "[cli]") {
  const ProcessResult version = run_kvreplay({"--version"});
  CHECK(version.code == 0);
  CHECK(version.out.rfind("kvreplay ", 0) == 0);
  CHECK(lines(version.out) == 1);
}

TEST_CASE("bad input is one line that names the file", "[cli]") {
  const TempDir temp;
  CHECK(contains(complaint({"info", temp / "nowhere"}), "nowhere"));
  fs::copy(sample_dump(), temp / "dump", fs::copy_options::recursive);
  fs::resize_file(temp / "dump/layer_03/k.npy", 1000);
  for (const char* command : {"info", "verify"})
    CHECK(contains(complaint({command, temp / "dump"}), "layer_03/k.npy"));
  CHECK(contains(complaint({"tokens", temp / "dump", "--out", temp / "r"}), "layer_03/k.npy"));
  CHECK_FALSE(fs::exists(temp / "r"));
}

TEST_CASE("options may come from a TOML file", "[cli]") {
  const TempDir temp;
  const std::string config = temp / "run.toml", dump = sample_dump();
  std::ofstream(config)
      << "window = 8\nmetrics = [\"attn\", \"exact_remove\"]\nlayers = \"0,2-3\"\nquiet = true\n";
  const ProcessResult done = succeed({"tokens", dump, "--out", temp / "a", "--config", config});
  CHECK(done.out.empty());
  succeed({"tokens", dump, "--out", temp / "b", "--window", "8", "--metrics", "attn,exact_remove", "--layers",
           "0,2-3"});
  CHECK(difference(temp / "a", temp / "b").empty());
  // the command line wins
  succeed({"tokens", dump, "--out", temp / "c", "--config", config, "--window", "9"});
  CHECK(nlohmann::json::parse(file_text(temp / "c/summary.json"))["options"]["tokens"]["window"] ==
        nlohmann::json::array({9}));

  std::ofstream(config) << "windw = 8\n";
  CHECK(contains(complaint({"tokens", dump, "--out", temp / "d", "--config", config}),
                 config + ": line 1: unknown key 'windw'; did you mean 'window'"));
  for (const auto& [text, part] :
       {std::pair{"window = 8\n[tokens]\nx = 1\n", "line 2: expected options at"},
        {"++ = 1\n", "line 1: expected TOML: "},
        {"\nnonsense\n", "line 2: expected TOML: "},
        {"quiet = true\nwindow = x\n", "line 2: expected TOML: "},
        {"quiet = true\nwindow = \"x\"\n", "line 2: --window: expected a whole number"},
        {"layers = 1\nlayers = 2\n", "line 2: expected TOML: "},
        {"metrics = [\"attn\"]\nmetrics = [\"key\"]\n", "line 2: expected TOML: "},
        {"quiet = true x\n", "line 1: expected TOML: "},
        {"out = \"x\n", "line 1: expected TOML: "},
        {"out = \"x\x01\"\n", "line 1: expected TOML: "},
        {"window = 2020-01-01\n", "line 1: window: expected a text, a number"},
        {"window = [[1]]\n", "line 1: window: expected a text, a number"},
        {"metrics = \"attn,,key\"\n", "line 1: metrics: expected a list without"},
        {"metrics = [\n'attn',\n", "line 2: expected TOML: "}}) {
    std::ofstream(config) << text;
    const std::string error = complaint({"tokens", dump, "--out", temp / "d", "--config", config});
    INFO(error);
    CHECK(contains(error, config + ": " + part));
  }
  std::ofstream(config)
      << "# of several lines\nmetrics = [  # two\n  'attn', # one\n\n  \"exact_remove\",\n]\n"
         "window = 8 # rows\nlayers = \"0,2-3\"\n";
  succeed({"tokens", dump, "--out", temp / "f", "--config", config});
  CHECK(difference(temp / "a", temp / "f").empty());
  std::ofstream(config) << "\xef\xbb\xbfwindow = 9\n";
  CHECK(run_kvreplay({"tokens", dump, "--out", temp / "e", "--config", config, "--quiet"}).code == 0);
  CHECK(contains(complaint({"tokens", dump, "--out", temp / "d", "--metrics", "attn,,key"}), "empty items"));
  CHECK(contains(complaint({"synth", ""}), "expected a folder"));
  CHECK(contains(complaint({"tokens", dump, "--out", temp / "d", "--config", temp / "none.toml"}),
                 "none.toml"));
  for (const auto& [file, part] : {std::pair{"", "--config: expected a file, found ''"},
                                   {"/dev/zero", "--config: expected a regular file, found '/dev/zero'"},
                                   {"/", "--config: expected a regular file, found '/'"}})
    CHECK(contains(complaint({"tokens", dump, "--out", temp / "d", "--config", file}), part));
  write_file(config, std::string((1 << 20) + 1, '#'));
  CHECK(contains(complaint({"tokens", dump, "--out", temp / "d", "--config", config}),
                 "at most 1048576 bytes"));
  CHECK(contains(complaint({"tokens", dump, "--out", temp / "d", "--shard", ""}), "--shard: expected i/n"));
}

TEST_CASE("streams that are closed or full end nothing but what is said", "[cli]") {
  const TempDir temp;
  const auto code_of = [&](const std::string& streams, const std::vector<std::string>& arguments) {
    std::vector<std::string> command = kvreplay_command(arguments);
    command.insert(command.begin(), {"/bin/sh", "-c", "exec \"$0\" \"$@\" " + streams});
    return run(command).code;
  };
  for (const char* streams : {"2>&-", "2>/dev/full", ">&- 2>&-", ">/dev/full 2>/dev/full", "<&- >&- 2>&-"}) {
    INFO(streams);
    CHECK(code_of(streams, {"info", temp / "none"}) == 2);
    CHECK(code_of(streams, {"tokens", sample_dump(), "--out", temp / "r", "--force", "--quiet", "--layers",
                            "0"}) == 0);
  }
  // Messages must not land in a file that took the place of a stream.
  succeed({"tokens", sample_dump(), "--out", temp / "s", "--layers", "0"});
  CHECK(difference(temp / "r", temp / "s").empty());
}

TEST_CASE("info says what a dump holds", "[cli]") {
  const ProcessResult text = run_kvreplay({"info", sample_dump(), "--values"});
  CHECK(text.code == 0);
  CHECK(contains(text.out, "6 layers, 4 query heads on 2 KV heads"));
  CHECK(contains(text.out, "896 prompt, 128 decoding steps"));
  CHECK(contains(text.out, "every value is finite"));
  const auto json = nlohmann::json::parse(run_kvreplay({"info", sample_dump(), "--json"}).out);
  CHECK(json["l"] == 896);
  CHECK(json["tensors"]["k"]["dtype"] == "float16");
  CHECK(json["rules"].size() == 6);
  REQUIRE(json["unavailable"].size() == 4);  // the sample has neither gradients nor a second reading
  CHECK(json["unavailable"].contains("kvzip"));
  CHECK(json["unavailable"].contains("kvzip_plus"));
  CHECK(json["unavailable"].contains("exact_loss"));
  CHECK(json["unavailable"].contains("oracle_loss"));
  const auto no_future =
      nlohmann::json::parse(run_kvreplay({"info", sample_dump(), "--json", "--prompt-len", "1024"}).out);
  CHECK(no_future["unavailable"].contains("oracle_next"));
}

TEST_CASE("synth writes a dump that verifies, and says what it planted", "[cli]") {
  const TempDir temp;
  const ProcessResult made = succeed({"synth", temp / "d", "--layers", "1", "--prompt", "64", "--decode", "8",
                                      "--head-dim", "16", "--json"});
  CHECK_FALSE(nlohmann::json::parse(made.out)["planted"]["sinks"].empty());
  CHECK(run_kvreplay({"info", temp / "d"}).code == 0);
  const ProcessResult verified = run_kvreplay({"verify", temp / "d", "--tokens", "0"});
  INFO(verified.out << verified.err);
  CHECK(verified.code == 0);
  CHECK(contains(complaint({"synth", temp / "d"}), "manifest.json"));
}

TEST_CASE("standard output that cannot be written is an error", "[cli]") {
  const ProcessResult result = run({"/bin/sh", "-c", "exec \"$0\" --help > /dev/full", program()});
  CHECK(result.code == 2);
  CHECK(lines(result.err) == 1);
}
