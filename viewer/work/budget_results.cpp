#include "viewer/work/budget_results.hpp"

#include "analysis/results/figures.hpp"
#include "analysis/results/map_name.hpp"
#include "data/error.hpp"
#include "data/npy_header.hpp"
#include "viewer/model/numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

namespace kvreplay::viewer {
namespace {

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
  if (!results.has(Table::budgets)) return fmt::format("the results have no {}", file_of(Table::budgets));
  return std::nullopt;
}

BudgetResults read_budgets(const ResultReader& results) {
  const DumpShape& shape = results.shape();
  const auto heads = static_cast<std::size_t>(shape.layers * shape.n_kv);
  BudgetResults all;
  all.normalised = is_normalised(results);
  each_figure(results, Table::budgets, [&](const TableFigure& figure) {
    const std::string &order = figure["order"], &method = figure["method"], &sigma = figure["sigma"];
    BudgetResults::Division& division = found_or_made(
        all.divisions, [&](const auto& one) { return one.order == order && one.sigma == sigma; },
        [&] {
          return BudgetResults::Division{order, sigma, {}};
        });
    BudgetShare& share = found_or_made(
        division.methods, [&](const BudgetShare& one) { return one.method == method; },
        [&] {
          BudgetShare made;
          made.method = method;
          made.budgets.assign(heads, 0);
          made.loss.assign(heads, kNone);
          return made;
        });
    // A layer's row says nothing that its heads do not; the model's has the sums as they were formed.
    if (figure.level() == Level::layer) return;
    const bool total = figure.level() == Level::model;
    const auto head = total ? 0 : static_cast<std::size_t>(*figure.layer * shape.n_kv + *figure.kv_head);
    const auto which = kBudgetFigures.named(figure.metric());
    if (which == BudgetFigure::loss) (total ? share.total_loss : share.loss[head]) = figure.value;
    if (which != BudgetFigure::budget) return;
    const double most = static_cast<double>(total ? shape.l * shape.layers * shape.n_kv : shape.l);
    if (!(figure.value >= 0 && figure.value <= most) || figure.value != std::floor(figure.value))
      throw InputError((results.folder() / file_of(Table::budgets)).string(),
                       fmt::format("budgets of whole tokens, at most {}", most),
                       fmt::format("{}", figure.value));
    (total ? share.total : share.budgets[head]) = static_cast<Index>(figure.value);
  });
  return all;
}

std::size_t bytes_of(const BudgetResultCurves& curves) {
  std::size_t bytes = sizeof(curves);
  for (const auto* const all : {&curves.loss, &curves.kept})
    for (const auto& of_head : *all) bytes += of_head.size() * sizeof(double) + sizeof(std::vector<double>);
  return bytes;
}

BudgetResultCurves read_budget_curves(const ResultReader& results, const std::string& order) {
  const DumpShape& shape = results.shape();
  const std::filesystem::path name = std::filesystem::path("curves") / (file_word(order) + ".npy");
  const ResultReader::Array array = results.array(name);
  const std::vector<Index> expected{std::ssize(results.layers()), shape.n_kv, shape.l + 1};
  if (array.shape != expected)
    throw InputError((results.folder() / name).string(), "shape " + shape_text(expected),
                     "shape " + shape_text(array.shape));
  BudgetResultCurves curves;
  curves.loss.resize(shape.layers * shape.n_kv);
  auto from = array.values.begin();
  for (const Index layer : results.layers())
    for (Index g = 0; g < shape.n_kv; ++g, from += shape.l + 1)
      curves.loss[layer * shape.n_kv + g].assign(from, from + shape.l + 1);
  curves.kept.resize(curves.loss.size());
  const std::filesystem::path lu = std::filesystem::path("curves") / (file_word(order) + "~lu.npy");
  if (!results.has(lu)) return curves;
  const BudgetProfile profile = load_profile(results.folder() / lu, std::ssize(results.layers()), shape.n_kv);
  Index row = 0;
  for (const Index layer : results.layers())
    for (Index g = 0; g < shape.n_kv; ++g, ++row)
      curves.kept[layer * shape.n_kv + g] = shares_kept(profile, row);
  return curves;
}

}  // namespace kvreplay::viewer
