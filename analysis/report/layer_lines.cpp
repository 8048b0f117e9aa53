#include "analysis/report/layer_lines.hpp"

#include "analysis/options/option.hpp"
#include "analysis/report/picked_lines.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/oracles.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay::report {
namespace {

using Picks = std::vector<std::string>;

/// What a list says of a key's value.
std::string option_of(std::string_view key, const std::string& value) {
  if (key == "rows") return rows_text(value);
  return key == "budget" || key == "sigma" ? kept_text(value) : value;
}

/// The lines of a figure as they come in: by what lists pick, a name, and a value each layer.
class Gathered {
 public:
  Gathered(const LayerLines& wanted, const std::vector<Index>& layers) : wanted_(wanted) {
    for (const Index layer : layers) drawn_.at.push_back(static_cast<double>(layer));
  }

  void add(const FigureFacts& figure, const Picks& picked, const LinePlot::Line& line,
           const std::vector<double>& values) {
    if (drawn_.picks.empty()) drawn_.picks.resize(picked.size());
    std::vector<std::size_t> numbers;
    for (std::size_t i = 0; i < picked.size(); ++i)
      numbers.push_back(place_in(drawn_.picks[i].options, picked[i]));
    const auto known = std::find_if(drawn_.lines.begin(), drawn_.lines.end(),
                                    [&](const LinePlot::Line& other) { return other.name == line.name; });
    const auto at = static_cast<std::size_t>(known - drawn_.lines.begin());
    if (known == drawn_.lines.end()) drawn_.lines.push_back(line);
    Lines& lines = drawn_.choices[numbers].values;
    lines.resize(std::max(lines.size(), at + 1), std::vector<double>(drawn_.at.size(), kNan));
    lines[at] = values;
    facts_[numbers] = &figure;
  }

  std::optional<Figure> figure(const std::vector<std::string>& labels) {
    if (drawn_.choices.empty() || drawn_.at.size() < 2) return std::nullopt;
    drawn_.name = wanted_.name;
    drawn_.heading = wanted_.heading;
    drawn_.reading = wanted_.reading;
    drawn_.shows = wanted_.figures;
    drawn_.x = {"layer", drawn_.at.front(), drawn_.at.back(), false};
    for (std::size_t i = 0; i < labels.size(); ++i) drawn_.picks[i].label = labels[i];
    for (auto& [picked, choice] : drawn_.choices) {
      choice.values.resize(drawn_.lines.size(), std::vector<double>(drawn_.at.size(), kNan));
      std::vector<double> all;
      for (const auto& line : choice.values) all.insert(all.end(), line.begin(), line.end());
      choice.y = figure_axis(std::string(facts_[picked]->name), facts_[picked]->scale, all);
    }
    return figure_of(std::move(drawn_));
  }

 private:
  const LayerLines& wanted_;
  PickedLines drawn_;
  std::map<std::vector<std::size_t>, const FigureFacts*> facts_;
};

/// The entries of a figure, those that the lists begin with first.
std::vector<const FigureEntry*> entries_of(const FigureTable& table, const LayerLines& wanted,
                                           const FigureFacts& figure) {
  std::vector<const FigureEntry*> found;
  for (const FigureEntry& entry : table.entries())
    if (table.key(entry, "metric") == figure.name && !std::isnan(largest(entry.layers)))
      found.push_back(&entry);
  std::stable_partition(found.begin(), found.end(), [&](const FigureEntry* entry) {
    return table.key(*entry, wanted.first.first) == wanted.first.second;
  });
  return found;
}

Picks picks_of(const FigureTable& table, const FigureEntry& entry, const LayerLines& wanted) {
  Picks picked{table.key(entry, "metric")};
  for (const auto& [key, label] : wanted.keys) picked.push_back(option_of(key, table.key(entry, key)));
  return picked;
}

std::vector<std::string> labels_of(const LayerLines& wanted) {
  std::vector<std::string> labels{"figure"};
  for (const auto& [key, label] : wanted.keys) labels.push_back(label);
  return labels;
}

}  // namespace

std::optional<Figure> layer_lines(const Tables& tables, const FigureTable& table, const LayerLines& wanted) {
  const std::vector<std::string> items = table.distinct(wanted.item);
  const std::vector<LineStyle> styles = styles_by_name(items);
  Gathered gathered(wanted, tables.layers);
  for (const FigureFacts* const figure : wanted.figures)
    for (const FigureEntry* const entry : entries_of(table, wanted, *figure)) {
      const std::string& item = table.key(*entry, wanted.item);
      const auto at = static_cast<std::size_t>(std::find(items.begin(), items.end(), item) - items.begin());
      gathered.add(*figure, picks_of(table, *entry, wanted),
                   {shown_key(table.table(), wanted.item, item), styles[at], {}, item}, entry->layers);
    }
  return gathered.figure(labels_of(wanted));
}

std::optional<Figure> layer_lines(const OverDumpsReader& results, const LayerLines& wanted) {
  const std::size_t n = results.dumps().size();
  std::vector<FigureTable> tables;
  for (const ResultReader& dump : results.dumps()) {
    if (dump.layers() != results.dumps().front().layers()) return std::nullopt;
    tables.emplace_back(dump, wanted.table);
  }
  Gathered gathered(wanted, results.dumps().front().layers());
  const FigureTable& first = tables.front();
  for (const FigureFacts* const figure : wanted.figures)
    for (const FigureEntry* const entry : entries_of(first, wanted, *figure)) {
      // What gains are counted from has none.
      if (figure->scale == FigureScale::gain && largest(entry->layers) == 0 && smallest(entry->layers) == 0)
        continue;
      Picks picked = picks_of(first, *entry, wanted);
      picked.insert(picked.begin() + 1, shown_key(wanted.table, wanted.item, first.key(*entry, wanted.item)));
      Wanted same;
      for (std::size_t i = 0; i < entry->key.size(); ++i)
        same.emplace_back(first.key_columns()[i], entry->key[i]);
      std::vector<double> sums(entry->layers.size(), 0.0);
      for (std::size_t dump = 0; dump < n; ++dump) {
        const FigureEntry* const its = tables[dump].find(same);
        std::vector<double> values(sums.size(), kNan);
        if (its != nullptr) values = its->layers;
        for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
        gathered.add(*figure, picked, {results.names()[dump], {0, 0, 0, true}, {}}, values);
      }
      for (double& sum : sums) sum /= static_cast<double>(n);
      gathered.add(*figure, picked, {fmt::format("mean of the {} prompts", n), {1, 0, 0}, {}, "mean"}, sums);
    }
  std::vector<std::string> labels = labels_of(wanted);
  labels.insert(labels.begin() + 1, wanted.item);
  return gathered.figure(labels);
}

}  // namespace kvreplay::report
