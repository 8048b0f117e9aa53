#include "viewer/work/budget_results.hpp"

#include "data/error.hpp"
#include "data/npy/npy_header.hpp"
#include "viewer/model/numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace kvreplay::viewer {
namespace {

constexpr const char* kBudgetsFile = "budgets.csv";

/// The element of `items` that `matches`, made where there is none.
template <class Item, class Matches, class Make>
Item& found_or_made(std::vector<Item>& items, Matches matches, Make make) {
  const auto found = std::find_if(items.begin(), items.end(), matches);
  return found != items.end() ? *found : items.emplace_back(make());
}

bool is_normalised(const ResultReader& results) {
  const auto& summary = results.summary();
  const nlohmann::ordered_json::json_pointer where("/options/budget/normalise");
  return summary.contains(where) && summary[where] == "layer";
}

}  // namespace

const BudgetResults::Division* BudgetResults::find(const std::string& order, const std::string& sigma) const {
  const auto found = std::find_if(divisions.begin(), divisions.end(), [&](const Division& one) {
    return one.order == order && one.sigma == sigma;
  });
  return found == divisions.end() ? nullptr : &*found;
}

std::size_t bytes_of(const BudgetResults& results) {
  std::size_t bytes = sizeof(results);
  for (const BudgetResults::Division& division : results.divisions)
    for (const BudgetShare& share : division.methods) bytes += bytes_of(share);
  return bytes;
}

std::optional<std::string> why_no_budget_results(const ResultReader& results) {
  if (!results.has(kBudgetsFile)) return fmt::format("the results have no {}", kBudgetsFile);
  return std::nullopt;
}

BudgetResults read_budgets(const ResultReader& results) {
  const DumpShape& shape = results.shape();
  const auto heads = static_cast<std::size_t>(shape.layers * shape.n_kv);
  BudgetResults all;
  all.normalised = is_normalised(results);
  results.each_row(kBudgetsFile, [&](const CsvReader& csv, const std::vector<std::string>& row) {
    const auto text = [&](const char* column) -> const std::string& { return row[csv.need(column)]; };
    BudgetResults::Division& division = found_or_made(
        all.divisions,
        [&](const auto& one) { return one.order == text("order") && one.sigma == text("sigma"); },
        [&] {
          return BudgetResults::Division{text("order"), text("sigma"), {}};
        });
    BudgetShare& share = found_or_made(
        division.methods, [&](const BudgetShare& one) { return one.method == text("method"); },
        [&] {
          BudgetShare made;
          made.method = text("method");
          made.budgets.assign(heads, 0);
          made.loss.assign(heads, kNone);
          return made;
        });
    const Index budget = csv.index(row, csv.need("budget"));
    const double loss = csv.number(row, csv.need("loss"));
    if (text("kv_head").empty()) {
      // A layer's row says nothing that its heads do not; the model's has the sums as they were formed.
      if (!text("layer").empty()) return;
      share.total = budget;
      share.total_loss = loss;
      return;
    }
    const Index layer = csv.index(row, csv.need("layer")), g = csv.index(row, csv.need("kv_head"));
    if (layer >= shape.layers || g >= shape.n_kv || budget > shape.l)
      throw InputError(
          (results.folder() / kBudgetsFile).string(),
          fmt::format("{} layers of {} KV heads and {} tokens", shape.layers, shape.n_kv, shape.l),
          fmt::format("layer {}, KV head {}, budget {}", layer, g, budget));
    const auto head = static_cast<std::size_t>(layer * shape.n_kv + g);
    share.budgets[head] = budget;
    share.loss[head] = loss;
  });
  return all;
}

std::size_t bytes_of(const BudgetResultCurves& curves) {
  std::size_t bytes = sizeof(curves);
  for (const auto& loss : curves.loss) bytes += loss.size() * sizeof(double) + sizeof(std::vector<double>);
  return bytes;
}

BudgetResultCurves read_budget_curves(const ResultReader& results, const std::string& order) {
  const DumpShape& shape = results.shape();
  const std::filesystem::path name = std::filesystem::path("curves") / (order + ".npy");
  const ResultReader::Array array = results.array(name);
  const std::vector<Index> expected{static_cast<Index>(results.layers().size()), shape.n_kv, shape.l + 1};
  if (array.shape != expected)
    throw InputError((results.folder() / name).string(), "shape " + shape_text(expected),
                     "shape " + shape_text(array.shape));
  BudgetResultCurves curves;
  curves.loss.resize(static_cast<std::size_t>(shape.layers * shape.n_kv));
  auto from = array.values.begin();
  for (const Index layer : results.layers())
    for (Index g = 0; g < shape.n_kv; ++g, from += shape.l + 1)
      curves.loss[static_cast<std::size_t>(layer * shape.n_kv + g)].assign(from, from + shape.l + 1);
  return curves;
}

}  // namespace kvreplay::viewer
