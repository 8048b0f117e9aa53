#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/read_file.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer/on_queue.hpp"
#include "viewer/questions/run.hpp"
#include "viewer/questions/what_if.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <filesystem>

using namespace kvreplay;
using namespace kvreplay::viewer;
namespace fs = std::filesystem;

TEST_CASE("what is kept of a cache that two layers read is what evict keeps of it", "[what_if]") {
  const test::TempDir temp;
  const std::string dump = temp / "d";
  test::make_small_dump(dump);
  for (const char* name : {"k.npy", "v.npy"})
    fs::copy_file(dump + "/layer_00/" + name, dump + "/layer_01/" + name,
                  fs::copy_options::overwrite_existing);
  nlohmann::json manifest = nlohmann::json::parse(test::file_text(dump + "/manifest.json"));
  manifest["cache_of"] = {0, 0};
  test::write_file(dump + "/manifest.json", manifest.dump());
  test::succeed({"evict", dump, "--out", temp / "r", "--policy", "snapkv", "--budget", "40"});
  const test::Evictions table(temp / "r");

  const auto run = Run::open(dump, 1);
  WhatIfSettings settings;
  settings.base = "snapkv";
  settings.sigma_budget = false;
  settings.budget = 40;
  const EvictionPlan plan = what_if_plan(settings, *run->dump());
  for (const Index layer : {0, 1})
    for (const Index g : {0, 1}) {
      const auto group = run->head(layer, g), readers = run->readers(layer, g);
      REQUIRE(readers->G() == 2 * group->G());
      const WhatIf found = test::on_queue([&](JobControl& job) {
        const WhatIfRanking ranking = what_if_ranking(*readers, plan, nullptr, {}, job);
        return what_if(*group, plan, ranking, what_if_importance(*group, job, readers.get()), job, {},
                       readers.get());
      });
      const auto kept =
          test::npy_file(temp / fmt::format("r/layer_0{}/kept/snapkv-paper-prefill-40.npy", layer));
      const std::string scope = fmt::format("{},{}", layer, g), which = "snapkv,paper,prefill,40";
      CHECK(std::equal(found.kept.begin(), found.kept.end(), kept.as<std::uint8_t>().begin() + g * 61));
      CHECK(found.future.error == Approx(table.at(scope, which, "future", "output_error")));
      CHECK(found.eviction_loss == Approx(table.at(scope, which, "future", "eviction_loss")));
      CHECK(found.oracle_recall == Approx(table.at(scope, which, "future", "oracle_recall")));
    }
}
