#include "tests/analysis/kvreplay_program.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
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

/// Tolerances for sums of rounded terms (kvreplay verify has equal ones and the reasons).
struct Allowed {
  double of_largest, relative, floor, of_sum;
};

template <class T>
class Results {
 public:
  explicit Results(std::string folder) : folder_(std::move(folder)) {}

  /// One metric of all tokens of a KV head.
  std::vector<double> values(const std::string& layer, const std::string& kv_head,
                             const std::string& metric) {
    const auto begin = array(layer, metric).begin() + std::stol(kv_head) * kTokens;
    return {begin, begin + kTokens};
  }
  double value(const std::string& layer, const std::string& kv_head, const std::string& metric,
               std::size_t p) {
    return array(layer, metric)[std::stoul(kv_head) * kTokens + p];
  }

 private:
  static constexpr std::ptrdiff_t kTokens = 896;

  const std::vector<T>& array(const std::string& layer, const std::string& metric) {
    const std::string path = fmt::format("{}/layer_0{}/tokens/{}.npy", folder_, layer, metric);
    std::vector<T>& values = arrays_[path];
    if (values.empty()) {
      const std::string bytes = file_text(path);
      REQUIRE(bytes.size() > 128);
      values.resize((bytes.size() - 128) / sizeof(T));
      REQUIRE(values.size() == 2 * kTokens);
      std::memcpy(values.data(), bytes.data() + 128, values.size() * sizeof(T));
    }
    return values;
  }

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
    if (!row[4].empty()) most = std::max(most, std::abs(std::stod(row[5])));
  }
  std::size_t compared = 0;
  for (const Fields& row : rows) {
    if (row[4].empty()) continue;
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
    if (!row[4].empty()) continue;
    INFO(name << " layer " << row[0] << " head " << row[1] << " " << row[3] << " of " << row[2]);
    const std::vector<double> values = results.values(row[0], row[1], row[2]);
    double size = 0, moment = 0;
    for (std::size_t p = 0; p < values.size(); ++p) {
      size += std::abs(values[p]);
      moment += static_cast<double>(p) * values[p];
    }
    if (row[3] == "sum") {
      REQUIRE(sums.count({row[0], row[1], row[2]}) == 1);
      REQUIRE(std::abs(sums[{row[0], row[1], row[2]}] - std::stod(row[5])) <= allowed.of_sum * size);
    } else {
      REQUIRE(std::abs(moment - std::stod(row[5])) <=
              allowed.of_sum * size * static_cast<double>(values.size()));
    }
  }
}

/// One metric of a KV head, with what all its pairs share: positions from the largest value down (equal ones
/// as they stand), and mid-ranks less their mean.
struct Ranked {
  std::vector<double> values, ranks;
  std::vector<std::size_t> order;
  double norm = 0, sum = 0;

  explicit Ranked(std::vector<double> of)
      : values(std::move(of)), ranks(values.size()), order(values.size()) {
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return values[a] > values[b]; });
    const double n = static_cast<double>(values.size());
    for (std::size_t begin = 0, end; begin < order.size(); begin = end) {
      for (end = begin; end < order.size() && values[order[end]] == values[order[begin]];) ++end;
      for (std::size_t i = begin; i < end; ++i)
        ranks[order[i]] = (n - 1) / 2 - static_cast<double>(begin + end - 1) / 2;
    }
    norm = std::inner_product(ranks.begin(), ranks.end(), ranks.begin(), 0.0);
    sum = std::accumulate(values.begin(), values.end(), 0.0);
  }

  /// Marks on the k best; the last `reserve` positions are among them whatever their values.
  std::vector<char> top(std::size_t k, std::size_t reserve) const {
    std::vector<char> found(values.size(), 0);
    std::fill(found.end() - static_cast<std::ptrdiff_t>(reserve), found.end(), 1);
    std::size_t more = k - reserve;
    for (auto p = order.begin(); more > 0; ++p) {
      more -= found[*p] == 0;
      found[*p] = 1;
    }
    return found;
  }
};

/// 40, and shares of the sample's 896 candidates.
const std::pair<const char*, std::size_t> kCuts[] = {
    {"40", 40}, {"1%", 9}, {"5%", 45}, {"10%", 90}, {"20%", 179}};

/// Every figure of a pair, from its definition (tests/golden/golden_agreement.py says the same).
std::map<std::string, double> agreement_of(const Ranked& score, const Ranked& reference, bool same_unit,
                                           std::size_t reserve) {
  const auto over = [](double part, double whole) { return whole > 0 ? part / whole : std::nan(""); };
  const std::size_t n = score.values.size();
  std::map<std::string, double> figures;
  if (same_unit) {
    double apart = 0;
    for (std::size_t p = 0; p < n; ++p) apart += std::abs(score.values[p] - reference.values[p]);
    figures["rel_l1"] = over(apart, reference.sum);
  }
  figures["spearman"] =
      over(std::inner_product(score.ranks.begin(), score.ranks.end(), reference.ranks.begin(), 0.0),
           std::sqrt(score.norm * reference.norm));
  for (const auto& [cut, k] : kCuts) {
    if (k <= reserve) continue;
    const std::vector<char> found = score.top(k, reserve), best = reference.top(k, 0);
    double hits = 0, mass = 0;
    for (std::size_t p = 0; p < n; ++p) {
      if (found[p] == 0) continue;
      hits += best[p];
      mass += reference.values[p];
    }
    figures[fmt::format("recall@{}", cut)] = hits / static_cast<double>(k);
    figures[fmt::format("mass@{}", cut)] = over(mass, reference.sum);
  }
  return figures;
}

const Fields kScores = {"attn",  "attn_sq",   "value",   "key",   "joint",
                        "caote", "fastcaote", "keydiff", "knorm", "expected_attention"};
const Fields kExact = {"exact_value", "exact_key", "exact_joint", "exact_remove"};
const Fields kOracles = {"oracle_next", "oracle_future", "oracle_importance"};

/// A difference of two of these means something.
bool is_squared_change(const std::string& metric) {
  return metric == "value" || metric == "key" || metric == "joint" || metric == "oracle_next" ||
         metric == "oracle_future" || std::ranges::count(kExact, metric) > 0;
}

/// Scores and exact errors, against exact errors and oracles.
std::vector<std::pair<std::string, std::string>> compared() {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const Fields& scores : {kScores, kExact})
    for (const std::string& score : scores)
      for (const Fields& references : {kExact, kOracles})
        for (const std::string& reference : references)
          if (score != reference) pairs.emplace_back(score, reference);
  return pairs;
}

/// agreement.csv says of every pair, and of nothing else, what follows from the values that were written.
template <class T>
void check_agreement(const std::string& folder, const Fields& layers) {
  // Figures are formed before values are rounded to T, which makes equals of near ones. The rank of an equal
  // moves a correlation by as much whether it is near 0 or near 1: the margin is absolute.
  const double epsilon = sizeof(T) == 8 ? 1e-10 : 1e-4;
  std::map<Fields, std::string> got;
  for (const Fields& row : csv(folder + "/agreement.csv"))
    got[{row[0], row[1], row[2], row[3], row[6], row[7]}] = row[8];
  Results<T> results(folder);
  for (const std::string& layer : layers)
    for (const std::string head : {"0", "1"}) {
      std::map<std::string, Ranked> ranked;
      for (const Fields& names : {kScores, kExact, kOracles})
        for (const std::string& name : names) ranked.try_emplace(name, results.values(layer, head, name));
      for (const auto& [score, reference] : compared())
        for (const std::size_t reserve : {0, 32}) {
          const bool same_unit = is_squared_change(score) && is_squared_change(reference);
          for (const auto& [figure, want] :
               agreement_of(ranked.at(score), ranked.at(reference), same_unit, reserve)) {
            INFO(folder << " layer " << layer << " head " << head << " " << score << " against " << reference
                        << " reserve " << reserve << " " << figure);
            const auto found = got.extract({layer, head, score, reference, std::to_string(reserve), figure});
            REQUIRE_FALSE(found.empty());
            REQUIRE(found.mapped().empty() == std::isnan(want));
            if (!std::isnan(want))
              REQUIRE(std::stod(found.mapped()) == Approx(want).epsilon(epsilon).margin(epsilon));
          }
        }
    }
  CHECK(got.empty());
}

void compute(const std::string& folder, const std::string& precision, std::vector<std::string> more) {
  std::vector<std::string> arguments = {"tokens",  sample_dump(), "--out", folder,   "--precision",
                                        precision, "--reserve",   "0,32",  "--quiet"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  succeed(arguments);
}

const Allowed kFloat64 = {1e-9, 1e-6, 1e-12, 1e-12};
const Allowed kFloat32 = {1e-4, 1e-3, 1e-6, 1e-5};

}  // namespace

TEST_CASE("float64 results equal the golden values", "[golden]") {
  const TempDir temp;
  compute(temp / "w32", "f64", {});
  check_tokens<double>(temp / "w32", "w32", kFloat64);
  check_agreement<double>(temp / "w32", {"0", "1", "2", "3", "4", "5"});
  compute(temp / "w896", "f64", {"--window", "896", "--layers", "0,5"});
  check_tokens<double>(temp / "w896", "w896", kFloat64);
  check_agreement<double>(temp / "w896", {"0", "5"});
}

TEST_CASE("float32 results follow the golden values", "[golden]") {
  const TempDir temp;
  compute(temp / "w32", "f32", {});
  check_tokens<float>(temp / "w32", "w32", kFloat32);
  check_agreement<float>(temp / "w32", {"0", "1", "2", "3", "4", "5"});
  compute(temp / "w896", "f32", {"--window", "896", "--layers", "0,5"});
  check_tokens<float>(temp / "w896", "w896", kFloat32);
  check_agreement<float>(temp / "w896", {"0", "5"});
}
