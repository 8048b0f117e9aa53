#include "analysis/report/allocation_figure.hpp"

#include "analysis/report/picked_lines.hpp"
#include "analysis/report/sections.hpp"
#include "analysis/results/budget_methods.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/map_name.hpp"
#include "data/error.hpp"
#include "data/npy_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

namespace kvreplay::report {
namespace {

constexpr Index kSigmas = 99;  // 0.01 .. 0.99, of a profile
constexpr const char* kLu = "lu";

/// A head's share kept by sigma in thousandths, which tells all apart that are asked for.
using Shares = std::map<Index, double>;
using OfHeads = std::vector<Shares>;  // [layers x n_kv]

Index thousandths(double sigma) { return static_cast<Index>(std::lround(sigma * 1000)); }

std::vector<std::string> orders_of(const ResultReader& results, const FigureTable& budgets) {
  std::vector<std::string> orders = budgets.distinct("order");
  std::erase_if(orders, [&](const std::string& order) {
    return !results.has(std::filesystem::path("curves") / fmt::format("{}~{}.npy", file_word(order), kLu));
  });
  return orders;
}

/// A profile, prune ratios [99, layers, n_kv]. Throws InputError where it is none.
OfHeads profile_shares(const ResultReader& results, const std::filesystem::path& name) {
  const ResultReader::Array array = results.array(name);
  const Index layers = std::ssize(results.layers()), n_kv = results.shape().n_kv;
  if (array.shape != std::vector<Index>{kSigmas, layers, n_kv})
    throw InputError((results.folder() / name).string(),
                     fmt::format("shape [{}, {}, {}]", kSigmas, layers, n_kv),
                     "shape " + shape_text(array.shape));
  OfHeads heads(static_cast<std::size_t>(layers * n_kv));
  for (Index i = 0; i < kSigmas; ++i)
    for (std::size_t head = 0; head < heads.size(); ++head)
      heads[head][10 * (i + 1)] = 1 - array.values[static_cast<std::size_t>(i) * heads.size() + head];
  return heads;
}

/// What a division kept at the run's own compressions.
OfHeads measured_shares(const ResultReader& results, const FigureTable& budgets, const std::string& order,
                        const std::string& method) {
  const auto l = static_cast<double>(results.shape().l);
  OfHeads heads(results.layers().size() * static_cast<std::size_t>(results.shape().n_kv));
  for (const std::string& sigma : budgets.distinct("sigma", {{"order", order}, {"method", method}})) {
    const auto* const entry =
        budgets.find({{"order", order}, {"method", method}, {"sigma", sigma}, {"metric", "budget"}});
    if (entry == nullptr) continue;
    const double asked = std::strtod(sigma.c_str(), nullptr);  // a ratio, or tokens
    for (std::size_t head = 0; head < heads.size(); ++head)
      heads[head][thousandths(asked < 1 ? asked : 1 - asked / l)] = entry->heads[head] / l;
  }
  return heads;
}

struct AllocationLine {
  LinePlot::Line line;
  std::map<std::string, OfHeads> by_order;
};

Figure figure_of(const ResultReader& results, const std::vector<std::string>& orders,
                 const std::vector<AllocationLine>& lines) {
  Shares at;
  for (const AllocationLine& line : lines)
    for (const auto& [order, heads] : line.by_order)
      for (const auto& [sigma, share] : heads.front()) at[sigma] = 0;
  PickedLines drawn;
  drawn.name = "allocation";
  drawn.heading = "What a head keeps at every compression";
  for (const auto& [sigma, _] : at) drawn.at.push_back(static_cast<double>(sigma) / 1000);
  drawn.x = {"sigma, the share of all tokens that is evicted", 0, 1, false};
  drawn.picks = {{"head", head_names(results)}, {"tokens ranked by", orders}};
  drawn.bridged = true;
  for (const AllocationLine& line : lines) drawn.lines.push_back(line.line);
  for (std::size_t o = 0; o < orders.size(); ++o)
    for (std::size_t head = 0; head < drawn.picks.front().options.size(); ++head) {
      PickedLines::Choice choice{{}, {"share of the head's tokens that stays", 0, 1, false}};
      for (const AllocationLine& line : lines) {
        const auto found = line.by_order.find(orders[o]);
        std::vector<double> values;
        for (const auto& [sigma, _] : at) {
          const bool there = found != line.by_order.end() && found->second[head].contains(sigma);
          values.push_back(there ? found->second[head].at(sigma) : kNan);
        }
        choice.values.push_back(std::move(values));
      }
      drawn.choices[{head, o}] = std::move(choice);
    }
  return figure_of(std::move(drawn));
}

}  // namespace

std::optional<Figure> allocation_figure(const Tables& tables) {
  const ResultReader& results = tables.results;
  const std::vector<std::string> orders = orders_of(results, tables.budgets);
  if (orders.empty()) return std::nullopt;
  std::vector<std::string> methods = tables.budgets.distinct("method");
  place_in(methods, std::string(kLu));
  const std::vector<LineStyle> styles = styles_by_name(methods);
  std::vector<AllocationLine> lines;
  for (std::size_t m = 0; m < methods.size(); ++m) {
    AllocationLine line{{shown_name(methods[m]), styles[m], {}, methods[m]}, {}};
    if (methods[m] == name_of(BudgetMethod::optimal)) line.line.style.dash = 1;
    for (const std::string& order : orders) {
      const auto curve = [&](std::string_view name) {
        return std::filesystem::path("curves") / fmt::format("{}.npy", name);
      };
      const auto own = curve(fmt::format("{}~{}", file_word(order), methods[m]));
      const auto common = curve(methods[m]);
      line.by_order[order] = results.has(own) ? profile_shares(results, own)
                             : results.has(common)
                                 ? profile_shares(results, common)
                                 : measured_shares(results, tables.budgets, order, methods[m]);
    }
    lines.push_back(std::move(line));
  }
  Figure figure = figure_of(results, orders, lines);
  figure.reading = fmt::format(
      "How much of one head's tokens stays, the more of all heads' are evicted: an even split is the "
      "diagonal, and a head above it gets more than its share. lu and a profile are known at every "
      "hundredth, the others at the run's own compressions, between which their lines are straight. {}.",
      oracles_of_budgets());
  return figure;
}

std::optional<Figure> allocation_figure(const OverDumpsReader& results) {
  const std::vector<ResultReader>& dumps = results.dumps();
  if (!dumps.front().has(Table::budgets)) return std::nullopt;
  std::vector<FigureTable> tables;
  for (const ResultReader& dump : dumps) {
    if (dump.layers() != dumps.front().layers()) return std::nullopt;
    tables.emplace_back(dump, Table::budgets);
  }
  std::vector<std::string> orders = orders_of(dumps.front(), tables.front());
  for (std::size_t d = 1; d < dumps.size(); ++d) {
    const std::vector<std::string> its = orders_of(dumps[d], tables[d]);
    std::erase_if(orders, [&](const std::string& order) {
      return std::find(its.begin(), its.end(), order) == its.end();
    });
  }
  if (orders.empty()) return std::nullopt;
  const auto n = static_cast<double>(dumps.size());
  const std::string optimum(name_of(BudgetMethod::optimal));
  std::vector<AllocationLine> lines;
  AllocationLine mean{
      {fmt::format("mean of the {} prompts: the profile", dumps.size()), {1, 0, 0}, {}, "mean"}, {}};
  AllocationLine exact{{"optimal (oracle), mean", {2, 1, 0}, {}, optimum}, {}};
  // A sigma that some dump lacks would have a mean of other prompts.
  const auto add = [&](OfHeads& sums, const OfHeads& of_dump, bool first) {
    if (first) sums.resize(of_dump.size());
    for (std::size_t head = 0; head < sums.size(); ++head) {
      if (first)
        for (const auto& [sigma, share] : of_dump[head]) sums[head][sigma] = 0;
      std::erase_if(sums[head], [&](const auto& sum) { return !of_dump[head].contains(sum.first); });
      for (auto& [sigma, sum] : sums[head]) sum += of_dump[head].at(sigma) / n;
    }
  };
  for (std::size_t d = 0; d < dumps.size(); ++d) {
    AllocationLine line{{results.names()[d], {0, 0, 0, true}, {}}, {}};
    for (const std::string& order : orders) {
      const auto name = std::filesystem::path("curves") / fmt::format("{}~{}.npy", file_word(order), kLu);
      line.by_order[order] = profile_shares(dumps[d], name);
      add(mean.by_order[order], line.by_order[order], d == 0);
      add(exact.by_order[order], measured_shares(dumps[d], tables[d], order, optimum), d == 0);
    }
    lines.push_back(std::move(line));
  }
  lines.push_back(std::move(mean));
  if (!tables.front().distinct("sigma", {{"method", optimum}}).empty()) lines.push_back(std::move(exact));
  Figure figure = figure_of(dumps.front(), orders, lines);
  figure.reading =
      "How much of one head's tokens LU-KV's division keeps, prompt by prompt (thin) and in their mean, the "
      "profile that other prompts would be divided by. Lines close together are a head that needs as much "
      "whatever the prompt; dashed is what the exact optimum keeps, at the run's own compressions.";
  return figure;
}

}  // namespace kvreplay::report
