// What the layers of a dump are called that has only some of the model's.

#include "viewer/model/layer_numbers.hpp"

#include "analysis/findings/findings.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer/on_queue.hpp"
#include "viewer/questions/find.hpp"
#include "viewer/questions/live_findings.hpp"
#include "viewer/questions/run.hpp"
#include "viewer/questions/stored.hpp"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using namespace kvreplay::test;

namespace {

/// Three layers, the model's 1, 14 and 28.
void make_some_layers(const std::filesystem::path& dump) {
  succeed({"synth", dump.string(), "--layers", "3", "--prompt", "48", "--decode", "4"});
  auto manifest = nlohmann::json::parse(file_text(dump / "manifest.json"));
  manifest["layers"] = {1, 14, 28};
  write_file(dump / "manifest.json", manifest.dump());
}

std::string title_of(std::string_view typed, const Run& run) {
  const FindAnswer answer = find_answer(typed, run.shape(), run.layers(), {});
  return answer.error.empty() ? answer.entries.at(0).title : answer.error;
}

}  // namespace

TEST_CASE("layers have the model's numbers, and are found by them", "[layer_numbers]") {
  const LayerNumbers some({1, 14, 28}), own = LayerNumbers::own(30);
  for (Index layer = 0; layer < 3; ++layer) CHECK(some.layer(some.number(layer)) == layer);
  CHECK(some.number(1) == ModelLayer{14});
  CHECK_FALSE(some.layer({0}).has_value());
  CHECK_FALSE(some.layer({2}).has_value());
  CHECK_FALSE(some.layer({29}).has_value());
  CHECK(some.number(7) == ModelLayer{7});  // none of the dump's
  CHECK(own.number(12) == ModelLayer{12});
  CHECK(own.layer({12}) == 12);
  CHECK_FALSE(own.layer({30}).has_value());
  CHECK(some.largest() == 28);
  CHECK(some.text() == "1, 14 and 28");
  CHECK(own.text() == "0 to 29");
  CHECK(LayerNumbers({5}).text() == "5");
  CHECK(LayerNumbers({3, 4, 5}).text() == "3 to 5");
  CHECK(LayerNumbers({0, 2, 4, 6, 8, 10, 12, 14}).text() == "0, 2, 4 .. 14");
  CHECK(LayerNumbers().text() == "none");
}

TEST_CASE("a run calls its layers by the model's numbers, from its dump and without it", "[layer_numbers]") {
  const TempDir dir;
  make_some_layers(dir / "dump");
  succeed({"tokens", dir / "dump", "--out", dir / "r", "--layers", "0,1", "--quiet"});
  const auto dump = Run::open(dir / "dump", 1), results = Run::open(dir / "r", 2);
  std::filesystem::remove_all(dir / "dump");
  const auto alone = Run::open(dir / "r", 3);
  REQUIRE(alone->dump() == nullptr);
  for (const auto& run : {dump, results, alone}) {
    CHECK(run->layer_number(1) == ModelLayer{14});
    CHECK(run->head_text(2, 1) == "layer 28 head 1");
    CHECK(title_of("L14 H1", *run) == "Go to layer 14, KV head 1");
    CHECK(title_of("layer 1", *run) == "Go to layer 1");
    CHECK(title_of("l2", *run) == "layer 2: there are 1, 14 and 28");
    const FindAnswer answer = find_answer("28.0", run->shape(), run->layers(), {});
    REQUIRE(answer.entries.size() == 1);
    CHECK(std::get<PlaceQuery>(answer.entries[0].what) == PlaceQuery{2, 0, {}});
  }
  CHECK(why_no_layer(*alone->results(), 2) == "the run did not compute layer 28");
  CHECK_FALSE(why_no_layer(*alone->results(), 1).has_value());
}

TEST_CASE("summary.json says the model's numbers where they are not the dump's", "[layer_numbers]") {
  const TempDir dir;
  make_some_layers(dir / "dump");
  succeed({"tokens", dir / "dump", "--out", dir / "r", "--layers", "2", "--quiet"});
  auto summary = nlohmann::json::parse(file_text(dir / "r/summary.json"));
  CHECK(summary["dump"]["model_layers"] == nlohmann::json({1, 14, 28}));
  CHECK(summary["layers"] == nlohmann::json({2}));  // by the dump's, as --layers
  CHECK(ResultReader(dir / "r").model_layers() == std::vector<Index>{1, 14, 28});
  for (const nlohmann::json& bad : {nlohmann::json(3), nlohmann::json({1, 14}), nlohmann::json({1, 28, 14}),
                                    nlohmann::json({-1, 0, 1}), nlohmann::json({"a", "b", "c"})}) {
    INFO(bad.dump());
    summary["dump"]["model_layers"] = bad;
    write_file(dir / "r/summary.json", summary.dump());
    CHECK(contains(refusal_of([&] { ResultReader reader(dir / "r"); }), "dump.model_layers: expected 3"));
  }
  succeed({"synth", dir / "all", "--layers", "2", "--prompt", "40", "--decode", "4"});
  succeed({"tokens", dir / "all", "--out", dir / "a", "--quiet"});
  CHECK(file_text(dir / "a/summary.json").find("model_layers") == std::string::npos);
}

TEST_CASE("findings call layers as the run does", "[layer_numbers]") {
  const TempDir dir;
  make_some_layers(dir / "dump");
  succeed({"evict", dir / "dump", "--out", dir / "r", "--policy", "h2o,tova,oracle_exact", "--sigma", "0.8",
           "--quiet"});
  const ResultReader results(dir / "r");
  Tables tables(results);
  const auto layer = [&] { return heaviest_layer(tables); };
  const auto own = layer();
  REQUIRE(own.has_value());
  REQUIRE(own->place.layer.has_value());
  tables.called = Run::open(dir / "r", 1)->layers().numbers();
  const auto called = layer();
  CHECK(called->place.layer == own->place.layer);
  const std::vector<std::string> numbers = {"1", "14", "28"};
  const auto names = [](const Finding& finding, const std::string& number) {
    return finding.text.find("of layer " + number + ",") != std::string::npos;
  };
  CHECK(names(*called, numbers[static_cast<std::size_t>(*own->place.layer)]));
  CHECK(names(*own, std::to_string(*own->place.layer)));
}

TEST_CASE("another run is looked at in the model's same layer", "[layer_numbers]") {
  const TempDir dir;
  make_some_layers(dir / "some");
  succeed({"synth", dir / "all", "--layers", "16", "--prompt", "40", "--decode", "4"});
  AppState state;
  state.runs = {Run::open(dir / "some", 1), Run::open(dir / "all", 2)};
  state.select_head(1, 0);
  CHECK(state.in_run(1).layer == 14);
  CHECK(state.in_run(1).run == 1);
  state.select(state.in_run(1));
  CHECK(state.in_run(0).layer == 1);
  state.select_head(5, 0);  // which the other has not: as near as can be
  state.select(state.in_run(0));
  CHECK(state.selection().layer == 2);
  CHECK(contains(why_not_comparable(*state.runs[0], *Run::open(dir / "some", 3)), "some") == false);
}

TEST_CASE("runs of other layers are not held against each other", "[layer_numbers]") {
  const TempDir dir;
  make_some_layers(dir / "a");
  std::filesystem::copy(dir / "a", dir / "b", std::filesystem::copy_options::recursive);
  auto manifest = nlohmann::json::parse(file_text(dir / "b/manifest.json"));
  manifest["layers"] = {0, 1, 2};
  write_file(dir / "b/manifest.json", manifest.dump());
  CHECK(why_not_comparable(*Run::open(dir / "a", 1), *Run::open(dir / "b", 2)) ==
        "a is of other layers than b: 1, 14 and 28, not 0 to 2.");
}
