#include "tests/analysis/kvreplay_program.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <sstream>
#include <tuple>

// The sample dump against values that an independent float64 script computed (tests/golden/README.md).

using namespace kvreplay::test;

namespace {

using Fields = std::vector<std::string>;

std::vector<Fields> csv(const std::string& path) {
  std::istringstream in(file_text(path));
  std::vector<Fields> rows;
  for (std::string line; std::getline(in, line);) {
    Fields fields;
    std::istringstream cells(line);
    for (std::string cell; std::getline(cells, cell, ',');) fields.push_back(cell);
    rows.push_back(std::move(fields));
  }
  rows.erase(rows.begin());
  return rows;
}

std::string golden(const std::string& name) {
  return source_dir() / "tests/golden" / ("pystdlib-lm." + name + ".csv");
}

/// What the sums of rounded terms may be off by (kvreplay verify has the same and the reasons).
struct Allowed {
  double of_largest, relative, floor;
};

template <class T>
class Results {
 public:
  explicit Results(std::string folder) : folder_(std::move(folder)) {}

  double value(const std::string& layer, const std::string& kv_head, const std::string& metric,
               std::size_t p) {
    const std::string path = fmt::format("{}/layer_0{}/tokens/{}.npy", folder_, layer, metric);
    std::vector<T>& values = arrays_[path];
    if (values.empty()) {
      const std::string bytes = file_text(path);
      REQUIRE(bytes.size() > 128);
      values.resize((bytes.size() - 128) / sizeof(T));
      REQUIRE(values.size() == 2 * kTokens);
      std::memcpy(values.data(), bytes.data() + 128, values.size() * sizeof(T));
    }
    return values[std::stoul(kv_head) * kTokens + p];
  }

 private:
  static constexpr std::size_t kTokens = 896;
  std::string folder_;
  std::map<std::string, std::vector<T>> arrays_;
};

template <class T>
void check_tokens(const std::string& folder, const std::string& name, const Allowed& allowed) {
  Results<T> results(folder);
  const auto rows = csv(golden(name + ".tokens"));
  using Key = std::tuple<std::string, std::string, std::string>;
  std::map<Key, double> largest;
  for (const Fields& row : rows) {
    double& most = largest[{row[0], row[1], row[2]}];
    if (row[3] != "sum") most = std::max(most, std::abs(std::stod(row[5])));
  }
  std::size_t compared = 0;
  for (const Fields& row : rows) {
    if (row[3] == "sum") continue;
    const double want = std::stod(row[5]), most = largest[{row[0], row[1], row[2]}];
    const double error = std::abs(results.value(row[0], row[1], row[2], std::stoul(row[4])) - want);
    INFO(name << " layer " << row[0] << " head " << row[1] << " " << row[2] << " token " << row[4]);
    REQUIRE(error <= allowed.of_largest * most);
    if (std::abs(want) > allowed.floor * most) REQUIRE(error <= allowed.relative * std::abs(want));
    ++compared;
  }
  CHECK(compared > 1000);

  std::map<Key, double> sums;
  const auto heads = file_text(folder + "/heads.csv");
  std::istringstream header(heads.substr(0, heads.find('\n')));
  Fields columns;
  for (std::string column; std::getline(header, column, ',');) columns.push_back(column);
  for (const Fields& row : csv(folder + "/heads.csv"))
    for (std::size_t c = 2; c < columns.size(); ++c) sums[{row[0], row[1], columns[c]}] = std::stod(row[c]);
  for (const Fields& row : rows) {
    if (row[3] != "sum") continue;
    INFO(name << " layer " << row[0] << " head " << row[1] << " sum of " << row[2]);
    REQUIRE(sums.count({row[0], row[1], row[2]}) == 1);
    REQUIRE(sums[{row[0], row[1], row[2]}] == Approx(std::stod(row[5])).epsilon(allowed.relative));
  }
}

/// Where rounding decides the order of near ties, ranks move a little and a top-k set swaps a token at its
/// edge.
void check_agreement(const std::string& folder, const std::string& name, double epsilon, double rank_slack,
                     std::size_t swaps) {
  using Key = std::tuple<std::string, std::string, std::string, std::string, std::string, std::string>;
  std::map<Key, std::string> got;
  for (const Fields& row : csv(folder + "/agreement.csv"))
    got[{row[0], row[1], row[2], row[3], row[6], row[7]}] = row[8];
  const auto want = csv(golden(name + ".agreement"));
  CHECK(want.size() > 1000);
  for (const Fields& row : want) {
    INFO(name << " layer " << row[0] << " head " << row[1] << " " << row[2] << " against " << row[3]
              << " reserve " << row[4] << " " << row[5]);
    const auto found = got.find({row[0], row[1], row[2], row[3], row[4], row[5]});
    REQUIRE(found != got.end());
    if (row[6] == "nan") {
      REQUIRE(found->second.empty());
      continue;
    }
    double slack = epsilon;
    if (row[5] == "spearman") slack = rank_slack;
    if (row[5].rfind("recall", 0) == 0) {
      const double k = row[5] == "recall@40" ? 40 : std::floor(std::stod(row[5].substr(7)) * 8.96 + 0.5);
      slack = static_cast<double>(swaps) / k + 1e-11;
    }
    REQUIRE(std::stod(found->second) == Approx(std::stod(row[6])).epsilon(epsilon).margin(slack));
  }
}

void compute(const std::string& folder, const std::string& precision, std::vector<std::string> more) {
  std::vector<std::string> arguments = {"tokens",  sample_dump(), "--out", folder,   "--precision",
                                        precision, "--reserve",   "0,32",  "--quiet"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const ProcessResult done = run_kvreplay(arguments);
  INFO(done.err);
  REQUIRE(done.code == 0);
}

const Allowed kFloat64 = {1e-9, 1e-6, 1e-12};
const Allowed kFloat32 = {1e-4, 1e-3, 1e-6};

}  // namespace

TEST_CASE("float64 results equal the golden values", "[golden]") {
  const TempDir temp;
  compute(temp / "w32", "f64", {});
  check_tokens<double>(temp / "w32", "w32", kFloat64);
  check_agreement(temp / "w32", "w32", 1e-9, 1e-6, 0);
  compute(temp / "w896", "f64", {"--window", "896", "--layers", "0,5"});
  check_tokens<double>(temp / "w896", "w896", kFloat64);
  check_agreement(temp / "w896", "w896", 1e-9, 1e-6, 0);
}

TEST_CASE("float32 results follow the golden values", "[golden]") {
  const TempDir temp;
  compute(temp / "w32", "f32", {});
  check_tokens<float>(temp / "w32", "w32", kFloat32);
  check_agreement(temp / "w32", "w32", 1e-3, 1e-3, 1);
  compute(temp / "w896", "f32", {"--window", "896", "--layers", "0,5"});
  check_tokens<float>(temp / "w896", "w896", kFloat32);
  check_agreement(temp / "w896", "w896", 1e-3, 1e-3, 1);
}
