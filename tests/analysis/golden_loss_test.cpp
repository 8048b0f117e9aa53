#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"
#include "tests/support/temp_dir.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <vector>

// Predicted losses of a synthetic dump against values that an independent float64 script computed from the
// same kept sets (tests/golden/golden_loss.py).

using namespace kvreplay::test;

namespace {

bool within(double got, double want, double of_largest) {
  return std::abs(got - want) <= 1e-9 * std::abs(want) + of_largest;
}

}  // namespace

TEST_CASE("losses are those of the golden script", "[golden][loss]") {
  const TempDir temp;
  succeed({"synth", temp / "d", "--layers", "2", "--q-heads", "4", "--kv-heads", "2", "--head-dim", "8",
           "--prompt", "40", "--decode", "6", "--gradients", "4", "--seed", "5", "--quiet"});
  succeed({"evict", temp / "d", "--out", temp / "r", "--policy", "streaming,snapkv[window=4]", "--keep",
           "20,8", "--precision", "f64", "--quiet"});
  succeed({"tokens", temp / "d", "--out", temp / "t", "--metrics", "exact_loss,oracle_loss", "--precision",
           "f64", "--quiet"});

  using Key = std::tuple<std::string, std::string, std::string, std::string, std::string>;
  std::map<Key, double> evicted;
  const Evictions results(temp / "r");
  for (const CsvRow& row : results.rows())
    if (!row.at("kept").empty())
      evicted[{row.at("layer"), row.at("kv_head"), row.at("metric"), row.at("rows"),
               fmt::format("{}-paper-prefill-{}", row.at("policy"), row.at("kept"))}] =
          std::stod(row.at("value"));

  const std::vector<CsvRow> golden =
      csv_rows(source_dir() / "tests/golden/synth.loss.csv", "what,layer,kv_head,metric,rows,of,value");
  std::map<std::string, std::vector<double>> tokens;
  std::size_t kept = 0, token = 0;
  for (const CsvRow& row : golden) {
    INFO(row.at("what") << " layer " << row.at("layer") << " head " << row.at("kv_head") << " "
                        << row.at("metric") << " " << row.at("rows") << " " << row.at("of"));
    const double want = std::stod(row.at("value"));
    if (row.at("what") == "kept") {
      const auto found =
          evicted.find({row.at("layer"), row.at("kv_head"), row.at("metric"), row.at("rows"), row.at("of")});
      REQUIRE(found != evicted.end());
      CHECK(within(found->second, want, row.at("metric") == "dnll" ? 1e-14 : 1e-18));
      ++kept;
      continue;
    }
    std::vector<double>& all = tokens[row.at("layer") + row.at("metric")];
    if (all.empty())
      all = npy_file(temp / fmt::format("t/layer_0{}/tokens/{}.npy", row.at("layer"), row.at("metric")))
                .as<double>();
    REQUIRE(all.size() == 2 * 40);
    CHECK(within(all[std::stoul(row.at("kv_head")) * 40 + std::stoul(row.at("of"))], want,
                 1e-15 * *std::max_element(all.begin(), all.end())));
    ++token;
  }
  CHECK(token == 2 * 2 * 2 * 40);
  // A kept set: loss_row and loss_head on both rows and dnll, of 2 layers and their 2 heads; on both rows
  // loss_layer and loss_step of the layers and what heads do together of the model.
  CHECK(kept == 4 * (2 * 3 * 5 + 2 * 2 * 2 + 2 * 3));
}
