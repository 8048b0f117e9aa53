#include "analysis/report/cell_map.hpp"
#include "analysis/report/figure.hpp"
#include "analysis/report/picked_lines.hpp"
#include "analysis/report/plots.hpp"
#include "analysis/report/sections.hpp"
#include "analysis/results/budget_methods.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/map_name.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>

namespace kvreplay::report {
namespace {

constexpr Index kSigmas = 99;  // 0.01 .. 0.99, of a profile
constexpr const char* kLu = "lu";

/// A head's share kept by sigma in thousandths, which tells all apart that are asked for.
using Shares = std::map<Index, double>;
using OfHeads = std::vector<Shares>;  // [layers x n_kv]

Index thousandths(double sigma) { return static_cast<Index>(std::lround(sigma * 1000)); }

std::vector<std::string> orders_of(const ResultReader& results, const MetricTable& budgets) {
  std::vector<std::string> orders = budgets.distinct("order");
  std::erase_if(orders, [&](const std::string& order) {
    return !results.has(std::filesystem::path("curves") / fmt::format("{}~{}.npy", file_word(order), kLu));
  });
  return orders;
}

/// A profile, prune ratios [99, layers, n_kv]. Throws InputError where it is none.
OfHeads profile_shares(const ResultReader& results, const std::filesystem::path& name) {
  const Index layers = std::ssize(results.layers()), n_kv = results.shape().n_kv;
  const ResultReader::Array array = results.array(name, {kSigmas, layers, n_kv});
  OfHeads heads(static_cast<std::size_t>(layers * n_kv));
  for (Index i = 0; i < kSigmas; ++i)
    for (std::size_t head = 0; head < heads.size(); ++head)
      heads[head][10 * (i + 1)] = 1 - array.values[static_cast<std::size_t>(i) * heads.size() + head];
  return heads;
}

/// Shares of tokens that a division keeps, at the run's own compression ratios.
OfHeads measured_shares(const ResultReader& results, const MetricTable& budgets, const std::string& order,
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

Figure figure_with(const ResultReader& results, const std::vector<std::string>& orders,
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

/// A line a division of the budget; nothing where the folder has no profile of `lu`.
std::optional<Figure> run_allocation_figure(const Tables& tables) {
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
  Figure figure = figure_with(results, orders, lines);
  figure.reading = fmt::format(
      "How much of one head's tokens stays, the more of all heads' are evicted: an even split is the "
      "diagonal, and a head above it gets more than its share. lu and a profile are known at every "
      "hundredth, the others at the run's own compressions, between which their lines are straight. {}.",
      oracles_of_budgets());
  return figure;
}

}  // namespace

std::optional<Figure> allocation_figure(const OverDumpsReader& results) {
  const std::vector<ResultReader>& dumps = results.dumps();
  if (!dumps.front().has(Table::budgets)) return std::nullopt;
  std::vector<MetricTable> tables;
  for (const ResultReader& dump : dumps) {
    if (dump.layers() != dumps.front().layers()) return std::nullopt;
    tables.emplace_back(dump, Table::budgets);
  }
  std::vector<std::string> orders = orders_of(dumps.front(), tables.front());
  for (std::size_t d = 1; d < dumps.size(); ++d) {
    const std::vector<std::string> its = orders_of(dumps[d], tables[d]);
    std::erase_if(orders, [&](const std::string& order) { return !is_in(its, order); });
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
  Figure figure = figure_with(dumps.front(), orders, lines);
  figure.reading =
      "How much of one head's tokens LU-KV's division keeps, prompt by prompt (thin) and in their mean, the "
      "profile that other prompts would be divided by. Lines close together are a head that needs as much "
      "whatever the prompt; dashed is what the exact optimum keeps, at the run's own compressions.";
  return figure;
}

namespace {

std::optional<Figure> loss_figure(const MetricTable& table) {
  return model_figure(
      table,
      {.name = "loss-by-sigma",
       .heading = "Loss by method and compression",
       .reading = fmt::format(
           "All methods keep the same number of tokens over all heads and differ in who gets them. loss is "
           "what the methods minimise, a sum over evicted tokens; output_error is what the outputs really "
           "change by. A method may lower the one and not the other. {}.",
           oracles_of_budgets()),
       .figures = offered_figures(Table::budgets),
       .item = "method",
       .setting = "sigma",
       .keys = {"order"},
       .labels = {"figure", "tokens ranked by"},
       .x = "sigma, the share of tokens evicted",
       .title = [](const std::string& figure, const std::vector<std::string>& of) {
         return fmt::format("{} of every way to share the budget, order {}", figure, of[0]);
       }});
}

std::optional<Figure> share_figure(const Tables& tables) {
  const MetricTable& table = tables.budgets;
  Variants maps("shared-budget");
  // Maps of lu, whose division is uneven, come first.
  std::vector<const MetricTable::Entry*> entries;
  for (const auto& entry : table.entries())
    if (table.key(entry, "metric") == "budget") entries.push_back(&entry);
  std::stable_partition(entries.begin(), entries.end(),
                        [&](const auto* entry) { return table.key(*entry, "method") == "lu"; });
  for (const auto* const entry : entries) {
    CellMap map = map_of_heads(
        tables.results.layers(),
        Eigen::Map<const Matrix<double>>(entry->heads.data(), std::ssize(tables.results.layers()),
                                         tables.results.shape().n_kv));
    const std::string method = shown_name(table.key(*entry, "method")),
                      budget = kept_text(table.key(*entry, "sigma"));
    map.title =
        fmt::format("Tokens of every head, {}, order {}, {}", method, table.key(*entry, "order"), budget);
    map.scale = {false, false, 0, static_cast<double>(std::max<Index>(tables.results.shape().l, 1))};
    map.value_label = "tokens kept, of the whole prompt";
    maps.add({method, table.key(*entry, "order"), budget}, std::move(map));
  }
  return maps.figure(
      {"method", "tokens ranked by", "budget"}, "Who gets the tokens",
      "The tokens that each head keeps. Dark heads are those that the method found to need the most; a map "
      "of one colour is an even split.");
}

std::optional<Figure> curve_figure(const Tables& tables) {
  SeriesFigure series;
  series.name = "loss-curves";
  series.heading = "Loss curves";
  series.reading =
      "What a head still loses when the first b tokens of its order are kept, as a share of what it loses "
      "without any. A curve that falls at once belongs to a head that needs few tokens; one that falls along "
      "the diagonal has no order to speak of.";
  series.x_label = "b, tokens kept of the head";
  series.y_label = "share of the loss that is left";
  series.share = true;
  series.second = {"", {""}};
  series.heads = head_names(tables.results);
  const std::vector<std::string> orders = tables.budgets.distinct("order");
  const auto file_of = [](const std::string& order) {
    return std::filesystem::path("curves") / (file_word(order) + ".npy");
  };
  for (const std::string& order : orders)
    if (tables.results.has(file_of(order))) series.lines.push_back(order);
  for (std::size_t i = 0; i < series.lines.size(); ++i)
    series.add(0, i, tables.results.array(file_of(series.lines[i])), tables.results);
  return figure_of(series);
}

LayerLines layers_of_budgets() {
  return {Table::budgets,
          "budget-by-layer",
          "Loss by layer",
          "What each way to share the budget loses, layer by layer (LU-KV, fig. 3): a line that stays low "
          "everywhere has no layer that pays for the others.",
          offered_figures(Table::budgets),
          "method",
          {{"order", "tokens ranked by"}, {"sigma", "budget"}}};
}

}  // namespace

std::optional<Figure> budget_layers_figure(const OverDumpsReader& results) {
  return layer_lines(results, layers_of_budgets());
}

Section budget_section(const Tables& tables) {
  return section_of("budgets", "Head budgets",
                    {loss_figure(tables.budgets), layer_lines(tables, tables.budgets, layers_of_budgets()),
                     share_figure(tables), run_allocation_figure(tables), curve_figure(tables)},
                    "No budgets shared between heads; kvreplay budget DUMP --out DIR computes them.");
}

}  // namespace kvreplay::report
