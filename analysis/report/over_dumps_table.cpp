#include "analysis/report/over_dumps_table.hpp"

#include "analysis/results/figure_table.hpp"
#include "analysis/results/oracles.hpp"
#include "analysis/results/validation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvreplay::report {
namespace {

/// The ends of an axis that the figure cannot pass, or that lie far enough out.
std::pair<double, double> limits_of(FigureScale scale) {
  const auto [low, high] = range_of(scale);
  return {scale == FigureScale::gain ? -1 : low, high};
}

constexpr const char* kGain = " gain";

}  // namespace

std::vector<OfferedMean> offered_means(Table table) {
  std::vector<OfferedMean> means;
  for (const FigureFacts* const facts : offered_figures(table))
    for (const char* const of : {"", kMedianHead})
      if (*of == '\0' || is_error_of_heads(*facts))
        means.push_back({fmt::format("{}{}", facts->name, of), facts});
  if (const FigureFacts* const measured = measured_figure(table))
    means.push_back({std::string(measured->name), measured});
  // What is measured first: formulas that stand for it are what it judges.
  std::stable_partition(means.begin(), means.end(),
                        [](const OfferedMean& mean) { return mean.facts->exact; });
  return means;
}

std::vector<OfferedMean> offered_gains(Table table) {
  static const FigureFacts gain{
      {.unit = "share of the error", .better = Better::larger, .scale = FigureScale::gain},
      "gain",
      "Gain",
      "Share of the error that is saved"};
  std::vector<OfferedMean> gains = offered_means(table);
  for (OfferedMean& mean : gains) mean = {mean.metric + kGain, &gain};
  return gains;
}

OverDumpsTable::OverDumpsTable(const OverDumpsReader& results, Table table)
    : KeyedTable(table), dumps_(results.names()) {
  columns_ = figure_keys(table);
  columns_.erase(columns_.begin(), columns_.begin() + 2);  // layer, kv_head
  for (OverDumpsReader::Figure& figure : results.model_figures(table)) {
    std::vector<std::string> key = figure.keys;
    entries_.push_back({std::move(key), std::move(figure)});
  }
}

OverDumpsTable OverDumpsTable::gains(std::string_view key, std::string_view base) const {
  OverDumpsTable table(table_);
  table.columns_ = columns_;
  table.dumps_ = dumps_;
  for (const MeanEntry& entry : entries_) {
    if (this->key(entry, key) == base) continue;
    Wanted wanted;
    for (std::size_t k = 0; k < columns_.size(); ++k)
      wanted.emplace_back(columns_[k], columns_[k] == key ? base : std::string_view(entry.key[k]));
    const MeanEntry* const other = find(wanted);
    if (other == nullptr) continue;
    MeanEntry gain = entry;
    for (std::size_t k = 0; k < columns_.size(); ++k)
      if (columns_[k] == "metric") gain.key[k] += kGain;
    RunningMean over(FigureScale::gain);
    for (std::size_t i = 0; i < dumps_.size(); ++i) {
      const double whole = other->figure.dumps[i];
      gain.figure.dumps[i] = whole > 0 ? 1 - entry.figure.dumps[i] / whole : kNan;
      over.add(gain.figure.dumps[i]);
    }
    gain.figure.over = over.result();
    table.entries_.push_back(std::move(gain));
  }
  return table;
}

std::optional<Figure> figure_of(const OverDumpsTable& table, const MeanFigure& wanted) {
  struct Picture {
    std::vector<std::string> picks;
    std::vector<const MeanEntry*> entries;
  };
  const std::vector<std::string> items = table.distinct(wanted.item);
  const std::vector<LineStyle> styles = styles_by_name(items);
  Variants variants(wanted.name);
  for (const auto& [metric, facts] : wanted.metrics) {
    std::vector<Picture> pictures;
    for (const MeanEntry& entry : table.entries()) {
      if (table.key(entry, "metric") != metric || std::isnan(entry.figure.over.mean)) continue;
      const std::vector<std::string> picks = wanted.picks(entry);
      auto at = std::find_if(pictures.begin(), pictures.end(),
                             [&](const Picture& picture) { return picture.picks == picks; });
      if (at == pictures.end()) at = pictures.insert(at, {picks, {}});
      at->entries.push_back(&entry);
    }
    if (wanted.first)
      std::stable_partition(pictures.begin(), pictures.end(),
                            [&](const Picture& picture) { return wanted.first(*picture.entries.front()); });
    const auto [least, most] = limits_of(facts->scale);
    for (const Picture& picture : pictures) {
      IntervalPlot plot;
      plot.id = variants.next_id();
      plot.title = fmt::format("{}, {}", metric, fmt::join(picture.picks, ", "));
      plot.samples = table.dumps();
      if (facts->scale == FigureScale::gain) plot.line = 0;
      for (const MeanEntry* const entry : picture.entries) {
        const std::string& item = table.key(*entry, wanted.item);
        const auto style = std::find(items.begin(), items.end(), item) - items.begin();
        const OverDumps& over = entry->figure.over;
        plot.rows.push_back({shown_key(table.table(), wanted.item, item), styles[style], over.n,
                             over.center(), over.low, over.high, entry->figure.dumps});
        plot.rows.back().key = item;
      }
      const bool larger = facts->better == Better::larger;
      std::stable_sort(plot.rows.begin(), plot.rows.end(), [larger](const auto& a, const auto& b) {
        return larger ? a.mean > b.mean : a.mean < b.mean;
      });
      plot.x = interval_axis(metric, plot.rows, facts->scale == FigureScale::log);
      plot.x.low = std::max(plot.x.low, least);
      plot.x.high = std::min(plot.x.high, most);
      std::vector<std::string> picks = {metric};
      picks.insert(picks.end(), picture.picks.begin(), picture.picks.end());
      variants.add(std::move(picks), plot);
    }
  }
  if (variants.empty()) return std::nullopt;
  Figure figure = variants.figure(wanted.labels);
  figure.heading = wanted.heading;
  figure.reading = wanted.reading;
  for (const OfferedMean& mean : wanted.metrics)
    if (figure.shows.empty() || figure.shows.back() != mean.facts) figure.shows.push_back(mean.facts);
  return figure;
}

}  // namespace kvreplay::report
