#include "analysis/results/over_dumps.hpp"

#include "analysis/results/main_figures.hpp"
#include "analysis/results/student.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay {

double OverDumps::center() const { return std::isnan(geometric_mean) ? mean : geometric_mean; }

void RunningMean::Moments::add(double value) {
  ++n;
  const double step = value - mean;
  mean += step / static_cast<double>(n);
  squares += step * (value - mean);
}

double RunningMean::Moments::sd() const { return std::sqrt(squares / static_cast<double>(n - 1)); }

double RunningMean::Moments::half_interval() const {
  return interval_t(n) * sd() / std::sqrt(static_cast<double>(n));
}

void RunningMean::add(double value) {
  if (std::isnan(value)) return;
  if (std::isinf(value)) {
    ++values_.n;
    infinite_ += value;
    return;
  }
  values_.add(value);
  if (scale_ == FigureScale::log && value > 0) scaled_.add(std::log(value));
  if (scale_ == FigureScale::correlation && std::abs(value) < 1) scaled_.add(std::atanh(value));
}

OverDumps RunningMean::result() const {
  OverDumps over;
  over.n = values_.n;
  if (over.n == 0) return over;
  over.mean = infinite_ == 0 ? values_.mean : infinite_;
  if (infinite_ != 0) return over;
  const bool is_scaled = scaled_.n == over.n;
  const FigureRange range = range_of(scale_);
  const auto shown = [&](double at) {
    if (!is_scaled) return std::clamp(at, range.low, range.high);
    return scale_ == FigureScale::log ? std::exp(at) : std::tanh(at);
  };
  const Moments& moments = is_scaled ? scaled_ : values_;
  if (is_scaled) (scale_ == FigureScale::log ? over.geometric_mean : over.mean) = shown(moments.mean);
  if (over.n < 2) return over;
  over.sd = values_.sd();
  if (over.n < kFewestPrompts) return over;
  const double half = moments.half_interval();
  over.low = shown(moments.mean - half);
  over.high = shown(moments.mean + half);
  return over;
}

TableOverDumps::TableOverDumps(Table table) : table_(table), keys_(figure_keys(table)) {}

void TableOverDumps::add(const ResultReader& results) {
  if (!results.has(table_)) return;
  ++dumps_;
  each_figure_of_prompt(results, table_, [&](const TableFigure& read) {
    const std::string name = joined(read.keys);
    const auto [at, is_new] = names_.add(name);
    if (is_new) {
      const FigureFacts* const facts = figure_named(table_, read.metric());
      figures_.push_back({RunningMean(facts != nullptr ? facts->scale : FigureScale::linear)});
    }
    Figure& figure = figures_[at];
    if (figure.latest == dumps_)
      throw InputError((results.folder() / file_of(table_)).string(), "every row once", "two of " + name);
    figure.latest = dumps_;
    ++figure.dumps;
    figure.mean.add(read.value);
  });
}

std::vector<TableOverDumps::Row> TableOverDumps::rows(std::optional<Level> level) const {
  std::vector<Row> rows;
  for (std::size_t i = 0; i < figures_.size(); ++i) {
    if (figures_[i].dumps < 2) continue;
    std::vector<std::string> keys = split_fields(names_[i]);
    if (level && level_of(keys) != *level) continue;
    rows.push_back({std::move(keys), figures_[i].mean.result()});
  }
  return rows;
}

std::size_t TableOverDumps::write(const ResultFolder& folder) const {
  const std::vector<Row> all = rows();
  if (all.empty()) return 0;
  CsvFile csv(folder.file(fmt::format("{}_over_dumps.csv", name_of(table_))),
              fmt::format("{},{}", fmt::join(keys_, ","), kMeanColumns));
  for (const auto& [keys, over] : all) {
    for (const std::string& key : keys) csv.add(key);
    csv.add(over.n).add(over.mean).add(over.sd).add(over.geometric_mean).add(over.low).add(over.high);
    csv.end_row();
  }
  csv.finish();
  return csv.rows();
}

std::string TableOverDumps::report() const {
  const std::vector<Row> model = rows(Level::model);
  std::vector<std::vector<std::string>> keys;
  for (const Row& row : model) keys.push_back(row.keys);
  std::string text;
  for (const Pivot& pivot : pivots(table_, keys_, keys)) {
    if (pivot.better == Better::neither) continue;
    text += fmt::format("{}{}\n", text.empty() ? "" : "\n", pivot.title);
    const ItemNames names = item_names(pivot);
    std::vector<std::vector<std::string>> lines{{names.heading}};
    lines[0].insert(lines[0].end(), pivot.settings.begin(), pivot.settings.end());
    for (std::size_t i = 0; i < names.shown.size(); ++i) {
      lines.push_back({names.shown[i]});
      for (const auto& cell : pivot.cells[i])
        lines.back().push_back(cell ? mean_text(model[*cell].over) : std::string());
    }
    text += aligned(lines);
  }
  return text;
}

std::string short_number(double value) {
  const double size = std::abs(value);
  return size >= 999.5 && size < 1e6 ? fmt::format("{:.0f}", value) : fmt::format("{:.3g}", value);
}

std::string interval_text(double low, double high) {
  return fmt::format("[{}, {}]", short_number(low), short_number(high));
}

std::string mean_text(const OverDumps& over) {
  const double center = over.center();
  if (std::isnan(center)) return "-";
  if (std::isnan(over.low)) return short_number(center);
  return fmt::format("{} {}", short_number(center), interval_text(over.low, over.high));
}

}  // namespace kvreplay
