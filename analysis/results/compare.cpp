#include "analysis/results/compare.hpp"

#include "analysis/results/agreement.hpp"
#include "analysis/results/dump_set.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/validation.hpp"
#include "data/console.hpp"
#include "data/error.hpp"
#include "data/file_contents.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>

namespace kvreplay {
namespace {

void add_leaves(const Json& value, const std::string& key,
                std::vector<std::pair<std::string, std::string>>& leaves) {
  if (!value.is_object()) return leaves.emplace_back(key, unquoted(value)), void();
  for (const auto& [name, inner] : value.items()) add_leaves(inner, key + "." + name, leaves);
}

/// Hash, as 16 hex digits, of what `results` holds in the layers that both runs have. Empty if a run recorded
/// no fingerprints of layers, or if the runs have no layer in common.
std::string contents_of_layers(const ResultReader& results, const ResultReader& other) {
  const auto noted = [](const ResultReader& side) {
    return side.summary().value("layer_fingerprints", Json::object());
  };
  const auto mine = noted(results), theirs = noted(other);
  std::string all;
  for (const auto& [layer, fingerprint] : mine.items())
    if (theirs.contains(layer)) all += fmt::format("{} {}\n", layer, fingerprint.dump());
  return all.empty() ? all : fmt::format("{:016x}", contents_of(std::as_bytes(std::span(all))).xxh3);
}

/// The settings, but "options.<analysis>: as asked" for an analysis that `other` did not run.
std::vector<std::pair<std::string, std::string>> settings_of(const ResultReader& results,
                                                             const ResultReader& other) {
  std::vector<std::pair<std::string, std::string>> leaves;
  for (const char* key : {"dump", "precision", "layers", "shard"})
    if (results.summary().contains(key)) add_leaves(results.summary()[key], key, leaves);
  leaves.emplace_back("dump.contents", contents_of_layers(results, other));
  const auto options_of = [](const ResultReader& side) {
    return side.summary().value("options", Json::object());
  };
  const auto mine = options_of(results), theirs = options_of(other);
  for (const auto& [analysis, options] : mine.items()) {
    const std::string key = fmt::format("options.{}", analysis);
    if (theirs.contains(analysis))
      add_leaves(options, key, leaves);
    else
      leaves.emplace_back(key, "as asked");
  }
  return leaves;
}

/// Where the dumps, the precision, the layers and the options differ.
std::vector<RunDifference> run_differences(const ResultReader& a, const ResultReader& b) {
  const auto left = settings_of(a, b), right = settings_of(b, a);
  const auto value_in = [](const auto& settings, const std::string& key) {
    for (const auto& [name, value] : settings)
      if (name == key) return value;
    return std::string("none");
  };
  std::vector<RunDifference> differences;
  for (const auto& [key, value] : left)
    if (const std::string other = value_in(right, key); other != value)
      differences.push_back({key, value, other});
  for (const auto& [key, value] : right)
    if (value_in(left, key) == "none" && value != "none") differences.push_back({key, "none", value});
  return differences;
}

/// One side's table, without the filter's keys.
struct SideTable {
  MetricTable table;
  std::optional<OptionText> missing;  // why the filter lets nothing through
};

constexpr const char* kWindowKey = "window";

/// True if tokens were scored on a single window, so that the window cannot distinguish figures.
bool one_window(const ResultReader& results) { return asked_windows(results).size() == 1; }

/// The rows of one table that pass a filter. With `any_window` the window is not part of a figure's key.
SideTable read_side(const ResultReader& results, Table table, const KeyFilter& filter,
                    const OptionFacts& option, bool any_window) {
  SideTable side{table_and_measured(results, table), {}};
  const std::vector<std::string> names = side.table.key_columns();
  for (const std::string& name : names)
    if (const auto wanted = filter.find(name); wanted != filter.end() && !side.missing) {
      std::vector<std::string> met = side.table.distinct(name);
      std::ranges::sort(met);
      if (!is_in(met, wanted->second))
        side.missing =
            option_text("{} {}={}: expected a value in {}, found {}", option, name, wanted->second,
                        (results.folder() / file_of(table)).string(),
                        met.empty() ? std::string("no rows") : fmt::format("{}", fmt::join(met, ", ")));
    }
  for (const auto& [name, value] : filter) side.table.select(name, value);
  if (any_window) side.table.drop(kWindowKey);
  return side;
}

std::array<double, 3> quartiles(std::vector<double> heads) {
  std::erase_if(heads, [](double value) { return std::isnan(value); });
  return {quantile(heads, 0.25), quantile(heads, 0.5), quantile(heads, 0.75)};
}

/// `layers`: the dump's numbers, of both sides where they have the `same` heads.
HeadAgreement head_agreement(const std::vector<double>& a, const std::vector<double>& b, bool same,
                             const std::vector<Index>& layers) {
  HeadAgreement agreed;
  agreed.a = quartiles(a);
  agreed.b = quartiles(b);
  agreed.median_difference = agreed.largest_difference = agreed.spearman = kNan;
  std::vector<double> left, right, differences;
  for (std::size_t head = 0; same && head < a.size(); ++head) {
    const double apart = std::abs(difference(a[head], b[head]));
    if (std::isnan(apart)) continue;
    left.push_back(a[head]);
    right.push_back(b[head]);
    differences.push_back(apart);
    if (std::isnan(agreed.largest_difference) || apart > agreed.largest_difference) {
      const std::size_t n_kv = a.size() / layers.size();
      agreed.largest_difference = apart;
      agreed.largest_at = fmt::format("{}.{}", layers[head / n_kv], head % n_kv);
    }
  }
  if (!same) return agreed;
  agreed.heads = std::ssize(left);
  agreed.median_difference = quantile(differences, 0.5);
  if (left.size() > 1) agreed.spearman = kvreplay::agreement(left, right, false)[AgreementFigure::spearman];
  return agreed;
}

RankOrder ranks_of(const std::string& setting, std::vector<ComparedFigure> figures, Better better) {
  std::erase_if(figures, [](const ComparedFigure& figure) {
    return std::isnan(figure.a) || std::isnan(figure.b) || figure.is_oracle;
  });
  const double sign = better == Better::larger ? -1 : 1;
  RankOrder ranks{setting, {}, {}, {}};
  const auto order = [&](double ComparedFigure::*side, std::vector<std::string>& names) {
    std::vector<const ComparedFigure*> sorted;
    for (const ComparedFigure& figure : figures) sorted.push_back(&figure);
    std::ranges::stable_sort(sorted, [&](const ComparedFigure* x, const ComparedFigure* y) {
      return sign * (x->*side) < sign * (y->*side);
    });
    for (const ComparedFigure* figure : sorted) names.push_back(figure->item);
  };
  order(&ComparedFigure::a, ranks.a);
  order(&ComparedFigure::b, ranks.b);
  struct Swap {
    std::pair<std::string, std::string> items;
    double margin;
  };
  std::vector<Swap> swaps;
  for (std::size_t i = 0; i < figures.size(); ++i)
    for (std::size_t j = i + 1; j < figures.size(); ++j) {
      const double in_a = sign * (figures[j].a - figures[i].a), in_b = sign * (figures[j].b - figures[i].b);
      if (!(in_a < 0 && in_b > 0) && !(in_a > 0 && in_b < 0)) continue;
      const auto &first = figures[in_a > 0 ? i : j], &second = figures[in_a > 0 ? j : i];
      swaps.push_back({{first.item, second.item}, std::min(std::abs(in_a), std::abs(in_b))});
    }
  std::ranges::stable_sort(swaps, [](const Swap& x, const Swap& y) { return x.margin > y.margin; });
  for (Swap& swap : swaps) ranks.swaps.push_back(std::move(swap.items));
  return ranks;
}

/// The metrics of a, with those of b under the same keys or null.
using Sides = std::vector<std::pair<const MetricEntry*, const MetricEntry*>>;

std::vector<ComparedPivot> compared_pivots(const TableComparison& table, const Sides& sides, bool same) {
  std::vector<std::vector<std::string>> model;
  std::vector<const TableComparison::Row*> row_of;
  for (const TableComparison::Row& row : table.rows) {
    if (row.scope.layer) continue;
    model.push_back(table.keys_of(row));
    row_of.push_back(&row);
  }
  std::vector<ComparedPivot> compared;
  for (const Pivot& pivot : pivots(table.table, table.keys, model)) {
    ComparedPivot mine{pivot.metric, pivot.title, pivot.better, pivot.scale, {}, {}};
    const auto [heading, names, shown, oracles] = item_names(pivot);
    for (std::size_t s = 0; s < pivot.settings.size(); ++s) {
      const std::size_t begin = mine.figures.size();
      for (std::size_t i = 0; i < names.size(); ++i) {
        if (!pivot.cells[i][s]) continue;
        const TableComparison::Row& row = *row_of[*pivot.cells[i][s]];
        const auto& [a, b] = sides[row.metric];
        mine.figures.push_back({names[i], pivot.settings[s], row.a, row.b,
                                head_agreement(a->heads, b->heads, same, table.layers), shown[i],
                                oracles[i]});
      }
      if (pivot.better != Better::neither)
        mine.ranks.push_back(ranks_of(
            pivot.settings[s],
            {mine.figures.begin() + static_cast<std::ptrdiff_t>(begin), mine.figures.end()}, pivot.better));
    }
    compared.push_back(std::move(mine));
  }
  return compared;
}

TableComparison compare_tables(const MetricTable& a, const MetricTable& b, bool same) {
  TableComparison table;
  table.table = a.table();
  table.layers = a.layers();
  table.keys = {"layer", "kv_head"};
  table.keys.insert(table.keys.end(), a.key_columns().begin(), a.key_columns().end());
  std::map<std::vector<std::string>, const MetricEntry*> others;
  for (const MetricEntry& entry : b.entries()) others.emplace(entry.key, &entry);
  Sides sides;
  for (const MetricEntry& entry : a.entries()) {
    const auto other = others.find(entry.key);
    sides.emplace_back(&entry, other == others.end() ? nullptr : other->second);
    table.metrics.push_back(entry.key);
  }
  double largest = 0;
  a.each_row([&](const MetricEntry& entry, Scope scope, double left) {
    if (!same && scope.layer) return;
    const auto metric = static_cast<std::size_t>(&entry - a.entries().data());
    const MetricEntry* const other = sides[metric].second;
    const double right = other == nullptr ? kNoRow : other->at(scope);
    if (!has_row(right)) {
      ++table.only_a;
      return;
    }
    const double apart = std::abs(difference(left, right));
    table.rows.push_back({metric, scope, left, right});
    if (std::isnan(apart) ? std::isnan(left) != std::isnan(right) : apart > 0) ++table.differing;
    if (apart > largest) {
      largest = apart;
      table.largest = table.rows.size() - 1;
    }
  });
  std::size_t of_b = 0;
  b.each_row([&](const MetricEntry&, Scope scope, double) { of_b += same || !scope.layer; });
  table.only_b = of_b - table.rows.size();
  table.pivots = compared_pivots(table, sides, same);
  return table;
}

std::vector<std::string> names_of(const std::vector<Table>& tables) {
  std::vector<std::string> names;
  for (const Table table : tables) names.emplace_back(name_of(table));
  return names;
}

std::string list_text(const std::vector<std::string>& names) {
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

std::vector<std::string> without(std::vector<std::string> names, const std::vector<std::string>& others) {
  std::erase_if(names, [&](const std::string& name) { return is_in(others, name); });
  return names;
}

/// A folder as comparisons name it; `results` is its first prompt.
ComparedFolders::Side side_of(const std::filesystem::path& folder, const ResultReader& results,
                              const KeyFilter& filter) {
  return {folder.string(), results.summary()["dump"].value("model", std::string("a model")), filter};
}

bool has_keys(Table table, const KeyFilter& filter) {
  const std::vector<std::string> keys = figure_keys(table);
  return std::ranges::all_of(filter, [&](const auto& item) { return is_in(keys, item.first); });
}

void check_filters(const KeyFilter& left, const KeyFilter& right) {
  std::set<std::string> known;
  for (const Table table : kTables.all())
    for (const std::string& key : figure_keys(table))
      if (key != "layer" && key != "kv_head") known.insert(key);
  const auto check = [&](const KeyFilter& mine, const KeyFilter& other, const OptionFacts& option,
                         const OptionFacts& other_option) {
    for (const auto& [key, value] : mine) {
      if (!known.contains(key))
        throw OptionError(option, fmt::format("a key of a table: {}", fmt::join(known, ", ")),
                          fmt::format("'{}'{}", key, did_you_mean(key, {known.begin(), known.end()})));
      if (!other.contains(key))
        throw OptionError(other_option, option_text("a value of {} too, as {} has one", key, option), "none");
    }
  };
  check(left, right, compare_option::left, compare_option::right);
  check(right, left, compare_option::right, compare_option::left);
}

}  // namespace

std::string two_models(const std::string& a, const std::string& b) {
  const std::string left = model_of(a), right = model_of(b);
  return left == right ? "" : fmt::format("two models, {} and {}", displayable(left), displayable(right));
}

std::vector<std::string> TableComparison::keys_of(const Row& row) const {
  std::vector<std::string> values;
  values.push_back(row.scope.layer ? fmt::format("{}", layers[static_cast<std::size_t>(*row.scope.layer)])
                                   : "");
  values.push_back(row.scope.head ? fmt::format("{}", *row.scope.head) : "");
  values.insert(values.end(), metrics[row.metric].begin(), metrics[row.metric].end());
  return values;
}

double difference(double a, double b) { return a == b ? 0 : b - a; }

FolderComparison compare(const ResultReader& a, const KeyFilter& left, const ResultReader& b,
                         const KeyFilter& right) {
  check_filters(left, right);
  const std::vector<std::string> in_a = names_of(a.tables()), in_b = names_of(b.tables());
  FolderComparison comparison;
  comparison.a = side_of(a.folder(), a, left);
  comparison.b = side_of(b.folder(), b, right);
  comparison.run = run_differences(a, b);
  comparison.same_heads = a.layers() == b.layers() && a.shape().n_kv == b.shape().n_kv;
  comparison.only_a = without(in_a, in_b);
  comparison.only_b = without(in_b, in_a);
  std::optional<OptionText> why_not;  // the filters meet no rows
  for (const Table table : a.tables()) {
    if (!b.has(table) || !has_keys(table, left)) continue;
    const bool any_window = !left.contains(kWindowKey) && one_window(a) && one_window(b);
    const SideTable mine = read_side(a, table, left, compare_option::left, any_window),
                    other = read_side(b, table, right, compare_option::right, any_window);
    if (const auto& missing = mine.missing ? mine.missing : other.missing) {
      if (!why_not) why_not = missing;
      continue;
    }
    comparison.tables.push_back(compare_tables(mine.table, other.table, comparison.same_heads));
  }
  if (comparison.tables.empty() && why_not) throw OptionError(*why_not);
  if (comparison.tables.empty())
    throw OptionError(option_text("{} and {}", a.folder().string(), b.folder().string()),
                      left.empty() ? OptionText("a table in both")
                                   : option_text("a table in both with the keys of {} and {}",
                                                 compare_option::left, compare_option::right),
                      fmt::format("{} in the first, {} in the second", list_text(in_a), list_text(in_b)));
  return comparison;
}

namespace {

/// The fingerprints of a prompt's layers, if the run recorded them; else fingerprint() of the dump, which
/// hashes the manifest and the arrays' names, types and shapes.
std::string fingerprint_of(const ResultReader& results) {
  const auto noted = results.summary().find("layer_fingerprints");
  return noted != results.summary().end() && !noted->empty()
             ? noted->dump()
             : results.summary()["dump"].value("fingerprint", std::string());
}

struct PromptPair {
  std::size_t a, b;
};

std::vector<PromptPair> prompts_in_both(const OverDumpsReader& a, const OverDumpsReader& b) {
  std::vector<std::string> others;
  for (const ResultReader& dump : b.dumps()) others.push_back(fingerprint_of(dump));
  std::vector<PromptPair> pairs;
  for (std::size_t i = 0; i < a.dumps().size(); ++i) {
    const auto found = std::ranges::find(others, fingerprint_of(a.dumps()[i]));
    if (found != others.end()) pairs.push_back({i, static_cast<std::size_t>(found - others.begin())});
  }
  return pairs;
}

/// Adds the figures of one of `prompts` prompts to the blocks that they are of.
void add_prompt(std::vector<BlockOverPrompts>& blocks, std::size_t prompt, std::size_t prompts,
                const TableComparison& table) {
  for (const ComparedPivot& pivot : table.pivots) {
    if (!paired_by(pivot.better, pivot.scale)) continue;
    auto block = std::ranges::find_if(blocks, [&](const BlockOverPrompts& known) {
      return known.table == table.table && known.title == pivot.title;
    });
    if (block == blocks.end())
      block = blocks.insert(block, {table.table, pivot.metric, pivot.title, pivot.better, pivot.scale, {}});
    for (const ComparedFigure& figure : pivot.figures) {
      auto at = std::ranges::find_if(block->figures, [&](const FigureOverPrompts& known) {
        return known.item == figure.item && known.setting == figure.setting;
      });
      const std::vector<double> none(prompts, kNan);
      if (at == block->figures.end())
        at = block->figures.insert(at, {figure.item, figure.setting, none, none, {}, kNan});
      at->a[prompt] = figure.a;
      at->b[prompt] = figure.b;
    }
  }
}

/// Sets both sides of every figure against each other, and adjusts the p of a block.
void pair_figures(BlockOverPrompts& block) {
  std::vector<double> p;
  for (FigureOverPrompts& figure : block.figures) {
    figure.over = paired(figure.a, figure.b, block.better, block.scale);
    // Figures that are equal in every prompt are not counted as tests: their p is NaN for holm().
    p.push_back(figure.over.mean == 0 && figure.over.sd == 0 ? kNan : figure.over.p);
  }
  const std::vector<double> adjusted = holm(p);
  for (std::size_t f = 0; f < adjusted.size(); ++f) block.figures[f].p = adjusted[f];
}

}  // namespace

ComparisonOverPrompts compare(const OverDumpsReader& a, const KeyFilter& left, const OverDumpsReader& b,
                              const KeyFilter& right) {
  const std::vector<PromptPair> pairs = prompts_in_both(a, b);
  ComparisonOverPrompts comparison;
  comparison.a = side_of(a.folder(), a.dumps().front(), left);
  comparison.b = side_of(b.folder(), b.dumps().front(), right);
  if (pairs.empty()) {
    const std::string models = two_models(comparison.a.model, comparison.b.model);
    throw InputError(fmt::format("{} and {}", a.folder().string(), b.folder().string()),
                     "a dump that both are over", models.empty() ? "none" : "none of " + models);
  }
  comparison.run = run_differences(a.dumps()[pairs.front().a], b.dumps()[pairs.front().b]);
  std::vector<std::string> other_names;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    comparison.prompts.push_back(a.names()[pairs[i].a]);
    other_names.push_back(b.names()[pairs[i].b]);
    for (const TableComparison& table :
         compare(a.dumps()[pairs[i].a], left, b.dumps()[pairs[i].b], right).tables)
      add_prompt(comparison.blocks, i, pairs.size(), table);
  }
  comparison.only_a = without(a.names(), comparison.prompts);
  comparison.only_b = without(b.names(), other_names);
  for (BlockOverPrompts& block : comparison.blocks) pair_figures(block);
  return comparison;
}

}  // namespace kvreplay
