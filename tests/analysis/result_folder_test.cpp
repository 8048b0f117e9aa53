#include "analysis/results/result_folder.hpp"

#include "data/error.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/process.hpp"
#include "tests/support/temp_dir.hpp"

#include <fstream>

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

void write(const fs::path& path) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << "x";
}

}  // namespace

TEST_CASE("a new folder is made, filled and finished", "[results]") {
  const TempDir temp;
  const fs::path path = temp / "deep/er";
  ResultFolder folder = open(path, Existing::refuse);
  CHECK_FALSE(folder.finished());
  CHECK_FALSE(folder.has_layer(0));
  folder.keep_layer(0, kFigures);
  CHECK(folder.has_layer(0));
  CHECK(folder.layer_figures(0, 3) == kFigures);
  CHECK_THROWS_AS(folder.layer_figures(0, 4), InputError);
  folder.finish({{"notes", Json::array()}});
  CHECK(folder.finished());
  CHECK(fs::exists(path / "summary.json"));
  CHECK(std::distance(fs::directory_iterator(path), {}) == 1);
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
  open(path, Existing::refuse).finish(kSettings);
  for (const char* name : {"heads.csv", "run.json", "maps/attn.npy", "layer_00/tokens/attn.npy",
                           "layer_100/x", "mine.txt", "layer_notes/x", ".kvreplay-12345678-1.tmp"})
    write(path / name);
  const ResultFolder folder = open(path, Existing::replace, {{"other", 1}});
  CHECK_FALSE(folder.finished());
  for (const char* name :
       {"summary.json", "heads.csv", "run.json", "maps", "layer_00", "layer_100", ".kvreplay-12345678-1.tmp"})
    CHECK_FALSE(fs::exists(path / name));
  CHECK(fs::exists(path / "mine.txt"));
  CHECK(fs::exists(path / "layer_notes/x"));
}

TEST_CASE("resume takes up finished layers", "[results]") {
  const TempDir temp;
  const fs::path path = temp / "r";
  open(path, Existing::resume).keep_layer(1, kFigures);  // nothing there yet: begins
  ResultFolder folder = open(path, Existing::resume);
  CHECK_FALSE(folder.has_layer(0));
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
  const std::string summary = test::file_text(path / "summary.json");
  Json other = kSettings;
  other["options"]["tokens"]["window"] = 64;
  open(path, Existing::replace, other);
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
