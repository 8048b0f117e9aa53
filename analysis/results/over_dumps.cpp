#include "analysis/results/over_dumps.hpp"

#include "analysis/results/main_figures.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <numbers>

namespace kvreplay {

namespace {

/// P(|T| <= sqrt(freedom) tan(angle)): Abramowitz and Stegun, 26.7.3 and 26.7.4.
double share_within(double angle, std::ptrdiff_t freedom) {
  const double sine = std::sin(angle), cosine = std::cos(angle);
  const bool odd = freedom % 2 == 1;
  if (freedom == 1) return 2 / std::numbers::pi * angle;
  double term = odd ? cosine : 1, sum = term;
  for (std::ptrdiff_t k = odd ? 2 : 1; k <= freedom - 3; k += 2) {
    term *= static_cast<double>(k) / static_cast<double>(k + 1) * cosine * cosine;
    sum += term;
  }
  return odd ? 2 / std::numbers::pi * (angle + sine * sum) : sine * sum;
}

constexpr double kConfidence = 0.95;

/// t of the confidence interval of n values; most figures share their n.
double t_of(Index n) {
  static const std::array<double, 256> known = [] {
    std::array<double, 256> t{};
    for (std::size_t i = 2; i < t.size(); ++i) t[i] = student_t(kConfidence, static_cast<Index>(i) - 1);
    return t;
  }();
  return n < std::ssize(known) ? known[n] : student_t(kConfidence, n - 1);
}

}  // namespace

double student_t(double share, std::ptrdiff_t freedom) {
  assert(share > 0 && share < 1 && freedom >= 1);
  freedom = std::min<std::ptrdiff_t>(freedom, 1'000'000);
  double low = 0, high = std::numbers::pi / 2;
  for (int step = 0; step < 60; ++step) {
    const double middle = low + (high - low) / 2;
    (share_within(middle, freedom) < share ? low : high) = middle;
  }
  return std::sqrt(static_cast<double>(freedom)) * std::tan(high);
}

void RunningMean::add(double value) {
  if (std::isnan(value)) return;
  ++n_;
  if (std::isinf(value)) {
    infinite_ += value;
    return;
  }
  const double step = value - mean_;
  mean_ += step / static_cast<double>(n_);
  squares_ += step * (value - mean_);
}

OverDumps RunningMean::result() const {
  OverDumps over;
  over.n = n_;
  if (n_ == 0) return over;
  over.mean = infinite_ == 0 ? mean_ : infinite_;
  if (n_ < 2 || infinite_ != 0) return over;
  over.sd = std::sqrt(squares_ / static_cast<double>(n_ - 1));
  over.half_interval = t_of(n_) * over.sd / std::sqrt(static_cast<double>(n_));
  return over;
}

TableOverDumps::TableOverDumps(Table table) : table_(table), keys_(figure_keys(table)) {}

void TableOverDumps::add(const ResultReader& results) {
  if (!results.has(table_)) return;
  ++dumps_;
  each_figure_and_median(results, table_, [&](const TableFigure& read) {
    const std::string name = joined(read.keys);
    const auto [at, is_new] = names_.add(name);
    if (is_new) figures_.emplace_back();
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
    csv.add(over.n).add(over.mean).add(over.sd);
    csv.add(over.mean - over.half_interval).add(over.mean + over.half_interval).end_row();
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
    const auto [heading, names] = item_names(pivot);
    std::vector<std::vector<std::string>> lines{{heading}};
    lines[0].insert(lines[0].end(), pivot.settings.begin(), pivot.settings.end());
    for (std::size_t i = 0; i < names.size(); ++i) {
      lines.push_back({names[i]});
      for (const auto& cell : pivot.cells[i])
        lines.back().push_back(cell ? mean_text(model[*cell].over) : std::string());
    }
    text += aligned(lines);
  }
  return text;
}

std::string mean_text(const OverDumps& over) {
  if (std::isnan(over.mean)) return "-";
  if (std::isnan(over.half_interval)) return fmt::format("{:.3g}", over.mean);
  // Never "1.4e+02" beside "442".
  const bool plain = over.half_interval >= 99.5 && over.half_interval < 1e6;
  return fmt::format(
      "{:.3g} ± {}", over.mean,
      plain ? fmt::format("{:.0f}", over.half_interval) : fmt::format("{:.2g}", over.half_interval));
}

}  // namespace kvreplay
