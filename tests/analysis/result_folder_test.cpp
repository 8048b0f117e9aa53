#include "analysis/results/result_folder.hpp"

#include "data/error.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/process.hpp"
#include "tests/support/temp_dir.hpp"

#include <fstream>
#include <functional>
#include <sys/stat.h>

using namespace kvreplay;
using test::TempDir;
namespace fs = std::filesystem;

namespace {

const Json kSettings = {{"dump", {{"model", "m"}, {"l", 8}}}, {"options", {{"tokens", {{"window", 32}}}}}};
const std::map<Index, std::string> kLayers = {{0, "aaaa"}, {1, "bbbb"}};
const std::vector<double> kFigures = {1.5, -2.0, 3.25};

ResultFolder open(const fs::path& path, Existing existing, const Json& settings = kSettings,
                  const std::map<Index, std::string>& layers = kLayers) {
  return ResultFolder(path, settings, layers, existing);
}

std::string error_of(const fs::path& path, Existing existing, const Json& settings = kSettings,
                     const std::map<Index, std::string>& layers = kLayers) {
  try {
    open(path, existing, settings, layers);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void write(const fs::path& path, const char* text = "x") {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

bool has_layer(const ResultFolder& folder, Index layer) { return folder.missing_layers({layer}).empty(); }

/// Layer 0 with an array and what is over all layers, finished.
ResultFolder results_in(const fs::path& path) {
  ResultFolder folder = open(path, Existing::refuse);
  write_file(folder.layer_file(0, "tokens/attn.npy"), "array");
  folder.keep_layer(0, kFigures);
  write_file(folder.file("heads.csv"), "table");
  write_file(folder.file("maps/attn.npy"), "map");
  folder.write_json("run.json", Json::object());
  return folder;
}

/// The same, left as a run leaves it that finished or was stopped.
void leave_results(const fs::path& path, bool finished) {
  ResultFolder folder = results_in(path);
  if (finished) folder.finish(kSettings);
}

}  // namespace

TEST_CASE("a new folder is made, filled and finished", "[results]") {
  const TempDir temp;
  const fs::path path = temp / "deep/er";
  ResultFolder folder = open(path, Existing::refuse);
  CHECK_FALSE(folder.finished());
  CHECK_FALSE(has_layer(folder, 0));
  folder.keep_layer(0, kFigures);
  CHECK(has_layer(folder, 0));
  CHECK(folder.layer_figures(0, 3) == kFigures);
  CHECK_THROWS_AS(folder.layer_figures(0, 4), InputError);
  folder.finish({{"notes", Json::array()}});
  CHECK(folder.finished());
  CHECK(fs::exists(path / "summary.json"));
  CHECK(test::file_text(path / "files.csv") == "name,bytes,xxh3\n");
  CHECK(std::distance(fs::directory_iterator(path), {}) == 2);
}

TEST_CASE("what a dump's layers hold is found out when it is needed, and once", "[results]") {
  const TempDir temp;
  const fs::path path = temp / "r";
  const std::string first(16, 'a'), second(16, 'b');
  std::vector<Index> asked;
  const auto in_turn = [&] {
    return LayerFingerprints({1, 0}, [&](Index layer) {
      asked.push_back(layer);
      return layer == 0 ? first : second;
    });
  };
  {
    const ResultFolder folder(path, kSettings, in_turn(), Existing::refuse);
    CHECK(asked.empty());
    CHECK(folder.fingerprint(0) == first);
    folder.keep_layer(0, kFigures);
    CHECK(asked == std::vector<Index>{0});
  }
  {
    const ResultFolder resumed(path, kSettings, in_turn(), Existing::resume);
    CHECK(asked == std::vector<Index>{0, 0});  // of the layer that is done, whether it still is the same
  }
  // Another process computes a layer: its record says what that one read.
  ResultFolder folder(path, kSettings, in_turn(), Existing::resume);
  const ResultFolder other = ResultFolder::join(path, kSettings, {{{0, first}, {1, second}}}, false);
  other.keep_layer(1, kFigures);
  asked.clear();
  CHECK(folder.layer_figures(1, 3) == kFigures);
  folder.finish(kSettings);
  CHECK(asked.empty());
  const Json summary = Json::parse(test::file_text(path / "summary.json"));
  CHECK(summary["layer_fingerprints"] == Json({{"0", first}, {"1", second}}));
}

TEST_CASE("layers are named with two digits at least", "[results]") {
  CHECK(layer_name(0) == "layer_00");
  CHECK(layer_name(7) == "layer_07");
  CHECK(layer_name(123) == "layer_123");
}

TEST_CASE("results are not overwritten unasked", "[results]") {
  const TempDir temp;
  const fs::path path = temp / "r";
  open(path, Existing::refuse);
  CHECK(contains(error_of(path, Existing::refuse), "unfinished results; --resume"));
  open(path, Existing::resume).finish(kSettings);
  const std::string error = error_of(path, Existing::refuse);
  CHECK(contains(error, "already holds finished results"));
  CHECK(contains(error, "--force"));
}

TEST_CASE("a folder of someone else's is left alone, whatever is asked", "[results]") {
  const TempDir temp;
  write(temp / "r/thesis.tex");
  for (const Existing existing : {Existing::refuse, Existing::resume, Existing::replace})
    CHECK(contains(error_of(temp / "r", existing), "other files"));
  write(temp / "s/summary.json");  // a summary, but none that names this program
  CHECK(contains(error_of(temp / "s", Existing::replace), "other files"));
  CHECK(fs::exists(temp / "s/summary.json"));
  write(temp / "file");
  CHECK(contains(error_of(temp / "file", Existing::replace), "found a file"));
}

TEST_CASE("force replaces results and nothing else", "[results]") {
  const TempDir temp;
  const fs::path path = temp / "r";
  leave_results(path, GENERATE(true, false));
  const char* const foreign[] = {"mine.txt",       "layer_notes/x",         "layer_00/thesis.tex",
                                 "layer_99/x",     "maps/mine.png",         "budgets.csv",
                                 ".kvreplay/mine", "layer_00/tokens/o.npy", "report/index.html"};
  for (const char* name : foreign) write(path / name);
  write(path / ".kvreplay-12345678-1.tmp");
  write(path / "layer_00/tokens/.kvreplay-12345678-2.tmp");
  const ResultFolder folder = open(path, Existing::replace, {{"other", 1}});
  CHECK_FALSE(folder.finished());
  for (const char* name :
       {"summary.json", "files.csv", "heads.csv", "run.json", "maps/attn.npy", "layer_00/tokens/attn.npy",
        ".kvreplay-12345678-1.tmp", "layer_00/tokens/.kvreplay-12345678-2.tmp"}) {
    INFO(name);
    CHECK_FALSE(fs::exists(path / name));
  }
  for (const char* name : foreign) {
    INFO(name);
    CHECK(fs::exists(path / name));
  }
}

TEST_CASE("a validation goes with the results that it tells of", "[results]") {
  const TempDir temp;
  const fs::path path = temp / "r";
  leave_results(path, true);
  for (const char* name :
       {"validate.csv", "answers.csv", "validate_layers.csv", "validate_steps.npy", "validate.json"})
    write(path / name);
  open(path, Existing::resume);
  CHECK(fs::exists(path / "validate.csv"));
  open(path, Existing::replace);
  for (const char* name :
       {"validate.csv", "answers.csv", "validate_layers.csv", "validate_steps.npy", "validate.json"})
    CHECK_FALSE(fs::exists(path / name));

  leave_results(temp / "other", true);
  write(temp / "other/validate.csv", "somebody else's");
  open(temp / "other", Existing::replace);
  CHECK(fs::exists(temp / "other/validate.csv"));
}

TEST_CASE("nothing is removed through a symbolic link", "[results]") {
  const TempDir temp;
  const fs::path path = temp / "r";
  leave_results(path, GENERATE(true, false));
  write(temp / "elsewhere/tokens/attn.npy", "mine");
  fs::remove_all(path / "layer_00");
  fs::create_directory_symlink(temp / "elsewhere", path / "layer_00");
  fs::remove(path / "heads.csv");
  fs::create_symlink(temp / "elsewhere/tokens/attn.npy", path / "heads.csv");
  open(path, Existing::replace);
  CHECK(test::file_text(temp / "elsewhere/tokens/attn.npy") == "mine");
  CHECK(fs::is_symlink(path / "layer_00"));
  CHECK(fs::is_symlink(path / "heads.csv"));

  write(temp / "theirs/layers/layer_00.figures", "mine");
  write(temp / "theirs/state.json", "mine");
  fs::remove_all(path / ".kvreplay");
  fs::create_directory_symlink(temp / "theirs", path / ".kvreplay");
  CHECK(contains(error_of(path, Existing::replace), "found a symbolic link"));
  CHECK(test::file_text(temp / "theirs/layers/layer_00.figures") == "mine");
  CHECK(test::file_text(temp / "theirs/state.json") == "mine");
}

TEST_CASE("results that do not say what they wrote are not replaced", "[results]") {
  const TempDir temp;
  const fs::path path = temp / "r";
  results_in(path).finish(kSettings);
  for (const char* text : {"", "name,bytes,xxh3\n../mine,1,0000000000000000\n",
                           "name,bytes,xxh3\n/etc/passwd,1,0000000000000000\n", "name,bytes,xxh3\nx,1\n",
                           "name,bytes,xxh3\nx,one,0000000000000000\n", "name,bytes,xxh3\nx,1,0"}) {
    write(path / "files.csv", text);
    INFO(text);
    CHECK(contains(error_of(path, Existing::replace), "a damaged file"));
  }
  fs::remove(path / "files.csv");
  CHECK(contains(error_of(path, Existing::replace), "remove the results yourself"));
  CHECK(fs::exists(path / "summary.json"));
  CHECK(fs::exists(path / "heads.csv"));
}

TEST_CASE("a layer that is not as it was written is computed again", "[results]") {
  const TempDir temp;
  const fs::path path = temp / "r", array = path / "layer_00/tokens/attn.npy";
  const fs::path record = path / ".kvreplay/layers/layer_00.figures";
  const std::function<void()> damages[] = {
      [&] { fs::remove(array); },
      [&] { write(array, ""); },
      [&] { write(array, "arraY"); },
      [&] { write(array, "array "); },
      [&] { fs::remove(array), fs::create_directory(array); },
      [&] { fs::remove(array), fs::create_symlink(record, array); },
      [&] {
        fs::rename(path / "layer_00", path / "l"), fs::create_directory_symlink("l", path / "layer_00");
      },
      [&] { REQUIRE((fs::remove(array) && ::mkfifo(array.c_str(), 0600) == 0)); },
      [&] { write(record, ""); },
      [&] {
        std::string text = test::file_text(record);
        text[6] = static_cast<char>(text[6] ^ 1);  // in the figures
        std::ofstream(record, std::ios::binary) << text;
      },
      [&] { fs::resize_file(record, 11); },
  };
  for (const auto& damage : damages) {
    fs::remove_all(path);
    results_in(path);
    CHECK(has_layer(open(path, Existing::resume), 0));
    damage();
    const ResultFolder folder = open(path, Existing::resume);
    CHECK_FALSE(has_layer(folder, 0));
  }
}

TEST_CASE("what a run that was cut short left is removed, and nothing else", "[results]") {
  const TempDir temp;
  const fs::path path = temp / "r";
  {
    const ResultFolder folder = results_in(path);
    write_file(folder.layer_file(1, "tokens/attn.npy"), "begun");
  }
  write(path / "layer_01/mine.txt");
  write(path / "layer_01/tokens/.kvreplay-1-1.tmp");
  open(path, Existing::resume);
  CHECK(fs::exists(path / "layer_00/tokens/attn.npy"));
  CHECK(fs::exists(path / "layer_01/mine.txt"));
  for (const char* name : {"layer_01/tokens", "heads.csv", "maps"}) CHECK_FALSE(fs::exists(path / name));
}

TEST_CASE("finished results are as they were written", "[results]") {
  const TempDir temp;
  const fs::path path = temp / "r";
  ResultFolder folder = results_in(path);
  write(path / "layer_00/tokens/attn.npy", "other");
  CHECK_THROWS_WITH(folder.finish(kSettings),
                    Catch::Contains("layer_00/tokens/attn.npy: expected the 5 bytes") &&
                        Catch::Contains("found other bytes"));
  CHECK_FALSE(fs::exists(path / "summary.json"));
  write(path / "layer_00/tokens/attn.npy", "array");
  folder.finish(kSettings);
  CHECK(error_of(path, Existing::resume).empty());
  fs::remove(path / "heads.csv");
  CHECK(contains(error_of(path, Existing::resume), "heads.csv: expected the 5 bytes"));
}

TEST_CASE("resume takes up finished layers", "[results]") {
  const TempDir temp;
  const fs::path path = temp / "r";
  open(path, Existing::resume).keep_layer(1, kFigures);  // nothing there yet: begins
  ResultFolder folder = open(path, Existing::resume);
  CHECK_FALSE(has_layer(folder, 0));
  CHECK(folder.layer_figures(1, 3) == kFigures);
  folder.finish(kSettings);
  CHECK(open(path, Existing::resume).finished());
}

TEST_CASE("resume refuses other settings and another dump, and names the difference", "[results]") {
  const TempDir temp;
  const fs::path path = temp / "r";
  open(path, Existing::refuse).keep_layer(1, kFigures);
  Json other = kSettings;
  other["options"]["tokens"]["window"] = 64;
  CHECK(contains(error_of(path, Existing::resume, other), "options.tokens.window was 32, is 64"));
  Json more = kSettings;
  more["shard"] = "1/2";
  CHECK(contains(error_of(path, Existing::resume, more), "shard was not given, is 1/2"));
  CHECK(contains(error_of(path, Existing::resume, kSettings, {{0, "aaaa"}, {1, "xxxx"}}),
                 "layer 1 of the dump"));
  // layer 0 is not done yet, so it may have been repaired
  CHECK(error_of(path, Existing::resume, kSettings, {{0, "xxxx"}, {1, "bbbb"}}).empty());

  open(path, Existing::resume).finish(kSettings);
  CHECK(contains(error_of(path, Existing::resume, other), "options.tokens.window was 32, is 64"));
  CHECK(contains(error_of(path, Existing::resume, kSettings, {{0, "xxxx"}, {1, "bbbb"}}),
                 "layer 0 of the dump"));
}

TEST_CASE("a replacement that stopped at once is begun again", "[results]") {
  const TempDir temp;
  const fs::path path = temp / "r";
  open(path, Existing::refuse).finish(kSettings);
  const std::string summary = test::file_text(path / "summary.json"),
                    files = test::file_text(path / "files.csv");
  Json other = kSettings;
  other["options"]["tokens"]["window"] = 64;
  open(path, Existing::replace, other);
  std::ofstream(path / "files.csv") << files;
  std::ofstream(path / "summary.json") << summary;  // as if killed before it was removed
  const ResultFolder folder = open(path, Existing::resume, other);
  CHECK_FALSE(folder.finished());
  CHECK_FALSE(fs::exists(path / "summary.json"));
}

TEST_CASE("a run that could not even begin leaves the folder usable", "[results]") {
  const TempDir temp;
  fs::create_directories(temp / "r/.kvreplay");
  CHECK(error_of(temp / "r", Existing::refuse).empty());
}

TEST_CASE("a damaged state is named, and replaced by force", "[results]") {
  const TempDir temp;
  const fs::path path = temp / "r";
  open(path, Existing::refuse).keep_layer(1, kFigures);
  for (const char* text : {"{", "[]", R"({"program": "kvreplay", "schema": "one"})"}) {
    std::ofstream(path / ".kvreplay/state.json") << text;
    const std::string error = error_of(path, Existing::resume);
    CHECK(contains(error, "state.json"));
    CHECK(contains(error, "damaged"));
  }
  CHECK(error_of(path, Existing::replace).empty());
}

TEST_CASE("records in the order of another version are not continued", "[results]") {
  const TempDir temp;
  const fs::path path = temp / "r", state = path / ".kvreplay/state.json";
  open(path, Existing::refuse).keep_layer(1, kFigures);
  CHECK(error_of(path, Existing::resume).empty());
  Json json = Json::parse(test::file_text(state));
  json.erase("records");
  std::ofstream(state) << json.dump();
  CHECK(contains(error_of(path, Existing::resume), "another version of kvreplay"));
  CHECK(error_of(path, Existing::replace).empty());
}

TEST_CASE("a folder is locked for as long as it is written", "[results]") {
  const TempDir temp;
  const fs::path path = temp / "r";
  {
    ResultFolder folder = open(path, Existing::refuse);
    for (const Existing existing : {Existing::refuse, Existing::resume, Existing::replace})
      CHECK(contains(error_of(path, existing), "another kvreplay is writing here"));
    folder.finish(kSettings);
    CHECK(error_of(path, Existing::replace).empty());
  }
  CHECK_FALSE(fs::exists(path / ".kvreplay/lock"));
}
