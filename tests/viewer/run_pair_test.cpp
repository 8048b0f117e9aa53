#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"
#include "viewer/questions/run.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <functional>

using namespace kvreplay;
using namespace kvreplay::viewer;
using namespace kvreplay::test;
namespace fs = std::filesystem;

namespace {

fs::path copied(const TempDir& dir, const std::string& name) {
  const fs::path to = fs::path(dir / name);
  fs::copy(sample_dump(), to, fs::copy_options::recursive);
  return to;
}

std::string why_not(const fs::path& a, const fs::path& b) {
  const std::string why = why_not_comparable(*Run::open(a, 1), *Run::open(b, 2));
  CHECK(why == why_not_comparable(*Run::open(a, 1), *Run::open(b, 2)));
  CHECK(why.find('\n') == std::string::npos);
  return why;
}

void change_tokens(const fs::path& dump, const std::function<void(nlohmann::json&)>& change) {
  nlohmann::json tokens = nlohmann::json::parse(file_text(dump / "tokens.json"));
  change(tokens);
  write_file(dump / "tokens.json", tokens.dump());
}

}  // namespace

TEST_CASE("runs of one prompt can be held against each other, whatever their numbers", "[run_pair]") {
  const TempDir dir;
  const fs::path same = copied(dir, "same");
  Npy keys = npy_file(same / "layer_00/k.npy");
  keys.data.front() ^= 1;
  write_file(same / "layer_00/k.npy", keys.bytes());
  CHECK(why_not(sample_dump(), same) == "");
  CHECK(why_not(sample_dump(), sample_dump()) == "");
}

TEST_CASE("runs of other prompts are told by the first token that differs", "[run_pair]") {
  const TempDir dir;
  const fs::path other = copied(dir, "other");
  change_tokens(other, [](nlohmann::json& tokens) {
    if (tokens.contains("ids")) tokens["ids"][17] = 3;
    if (tokens.contains("text")) tokens["text"][17] = "Q";
  });
  const std::string why = why_not(other, sample_dump());
  INFO(why);
  CHECK(contains(why, "other is of another prompt than"));
  CHECK(contains(why, "token 17 is 'Q'"));
}

TEST_CASE("without tokens only a dump behind both says that two runs are of one prompt", "[run_pair]") {
  const TempDir dir;
  const fs::path silent = copied(dir, "silent"), other = copied(dir, "other");
  for (const fs::path& dump : {silent, other}) fs::remove(dump / "tokens.json");
  CHECK(why_not(silent, silent) == "");
  CHECK(contains(why_not(silent, sample_dump()), "cannot be told"));
  // Of one make, and perhaps of another text of this length.
  CHECK(contains(why_not(silent, other), "cannot be told"));
  const auto results = [&](const fs::path& dump, const std::string& name) {
    succeed({"tokens", dump.string(), "--out", dir / name, "--quiet"});
    return fs::path(dir / name);
  };
  const fs::path a = results(silent, "a"), b = results(silent, "b");
  CHECK(why_not(a, silent) == "");
  CHECK(why_not(a, b) == "");
  fs::remove_all(silent);
  CHECK(why_not(a, b) == "");
  Npy keys = npy_file(other / "layer_00/k.npy");
  keys.data.front() ^= 1;
  for (Index layer = 0; layer < 6; ++layer)
    write_file(other / fmt::format("layer_0{}", layer) / "k.npy", keys.bytes());
  CHECK(contains(why_not(a, results(other, "c")), "cannot be told"));
}

TEST_CASE("runs of other shapes are refused", "[run_pair]") {
  const TempDir dir;
  const auto synth = [&](const std::string& name, const std::string& prompt, const std::string& layers) {
    succeed({"synth", dir / name, "--layers", layers, "--prompt", prompt, "--decode", "4"});
    return fs::path(dir / name);
  };
  const fs::path a = synth("a", "40", "2");
  CHECK(why_not(a, a) == "");
  CHECK(contains(why_not(a, synth("longer", "41", "2")), "another shape"));
  const std::string deeper = why_not(a, synth("deeper", "40", "3"));
  CHECK(contains(deeper, "2 layers"));
  CHECK(contains(deeper, "not 3 layers"));
}

TEST_CASE("a pinned run says again of every run", "[run_pair]") {
  const TempDir dir;
  const fs::path other = copied(dir, "other");
  change_tokens(other, [](nlohmann::json& tokens) {
    tokens["text"][3] = "Q";
    tokens["ids"][3] = 1;
  });
  PinnedRun pinned;
  const auto a = Run::open(sample_dump(), 1), b = Run::open(other, 2), c = Run::open(sample_dump(), 3);
  pinned.pin(a);
  CHECK(pinned.why_not(*c) == "");
  CHECK(pinned.why_not(*b) != "");
  CHECK(pinned.why_not(*c) == "");
  pinned.pin(b);
  CHECK(pinned.why_not(*c) != "");
}
