#include "analysis/results/over_dumps.hpp"

#include "analysis/results/dump_set.hpp"
#include "analysis/results/main_figures.hpp"
#include "analysis/results/paired.hpp"
#include "analysis/results/result_folder.hpp"
#include "analysis/results/text_file.hpp"
#include "analysis/results/validation.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay {
namespace {

std::string means_file_of(Table table) { return fmt::format("{}_over_dumps.csv", name_of(table)); }

}  // namespace

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

OverDumps over_dumps(std::span<const double> values, FigureScale scale) {
  RunningMean over(scale);
  for (const double value : values) over.add(value);
  return over.result();
}

TableOverDumps::TableOverDumps(Table table) : table_(table) {}

void TableOverDumps::add(const ResultReader& results) {
  MetricTable table(results, table_);
  table.name_windows(results);
  table.each_row([&](const MetricEntry& entry, Scope scope, double value) {
    const auto metric = places_.try_emplace(entry.key).first;
    const auto [at, is_new] = metric->second.try_emplace(table.fields_of(scope), means_.size());
    if (is_new) {
      const FigureFacts* const facts = figure_named(table_, entry.metric());
      means_.push_back(
          {&at->first, &metric->first, RunningMean(facts != nullptr ? facts->scale : FigureScale::linear)});
    }
    ++means_[at->second].dumps;
    means_[at->second].mean.add(value);
  });
}

std::vector<TableOverDumps::Row> TableOverDumps::rows(bool of_model) const {
  std::vector<Row> rows;
  for (const Mean& one : means_) {
    if (one.dumps < 2 || (of_model && !one.scope->front().empty())) continue;
    Row& row = rows.emplace_back(Row{*one.scope, one.mean.result()});
    row.keys.insert(row.keys.end(), one.metric->begin(), one.metric->end());
  }
  return rows;
}

std::size_t TableOverDumps::write(const ResultFolder& folder) const {
  const std::vector<Row> all = rows();
  if (all.empty()) return 0;
  CsvFile csv(folder.file(means_file_of(table_)),
              fmt::format("{},{}", fmt::join(figure_keys(table_), ","), kMeanColumns));
  for (const auto& [keys, over] : all) {
    for (const std::string& key : keys) csv.add(key);
    csv.add(over.n).add(over.mean).add(over.sd).add(over.geometric_mean).add(over.low).add(over.high);
    csv.end_row();
  }
  csv.finish();
  return csv.rows();
}

std::string TableOverDumps::report() const {
  const std::vector<Row> model = rows(true);
  std::vector<std::vector<std::string>> keys;
  for (const Row& row : model) keys.push_back(row.keys);
  std::string text;
  for (const Pivot& pivot : pivots(table_, figure_keys(table_), keys)) {
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

namespace {

constexpr std::uintmax_t kMostSummary = std::uintmax_t{1} << 28;
constexpr std::size_t kPlace = 2;  // keys of a figure's place: layer, kv_head

/// True if two means of `values` are equal up to the rounding by which compilers differ in a sum.
bool same_mean(double a, double b, std::span<const double> values) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return true;
  double size = 0;
  for (const double value : values)
    if (std::isfinite(value)) size = std::max(size, std::abs(value));
  return std::abs(a - b) <= 1e-12 * size * static_cast<double>(values.size());
}

}  // namespace

bool OverDumpsReader::is_over_dumps(const std::filesystem::path& folder) {
  if (!ResultReader::is_results(folder)) return false;
  const auto json = json_object_in(folder / "summary.json");
  return json && json->value("kind", Json()) == kOverDumps;
}

OverDumpsReader::OverDumpsReader(std::filesystem::path folder) : folder_(std::move(folder)) {
  const std::string where = (folder_ / "summary.json").string();
  summary_ = parse_json_object(file_text(folder_ / "summary.json", kMostSummary), where);
  const JsonFields fields(summary_, where);
  const auto refuse = [&](const char* key, const std::string& wanted) {
    const Json& found = fields.at(key);
    throw InputError(fields.where(key), wanted, found.is_null() ? "none" : json_text(found));
  };
  for (const auto& [key, wanted] :
       {std::pair<const char*, Json>{"program", "kvreplay"}, {"schema", kResultSchema}, {"kind", kOverDumps}})
    if (fields.at(key) != wanted) refuse(key, json_text(wanted));
  const Json &list = fields.at("dumps"), &others = fields.at(kLeaveOneOut);
  if (!list.is_array() || list.empty()) refuse("dumps", "a list of dumps");
  if (!others.is_null() && !others.is_array()) refuse(kLeaveOneOut, "a list of dumps");
  for (const Json& dump : list) {
    for (const char* key : {"name", "fingerprint"})
      if (!dump.is_object() || !dump.contains(key) || !dump[key].is_string())
        throw InputError(fields.where("dumps"), fmt::format("a {} of every dump", key), json_text(dump));
    const std::string name = dump["name"];
    if (name.empty() || name == ".." || name == "." || std::filesystem::path(name).filename() != name)
      throw InputError(fields.where("dumps"), "names of folders in it", fmt::format("'{}'", name));
    names_.push_back(name);
    dumps_.push_back(results_in(name, dump["fingerprint"]));
    left_one_out_.emplace_back();
    if (is_in(others, Json(name)))
      left_one_out_.back() = results_in(std::filesystem::path(kLeaveOneOut) / name, dump["fingerprint"]);
  }
  for (const Json& name : others)
    if (!name.is_string() || !is_in(names_, name.get<std::string>()))
      throw InputError(fields.where(kLeaveOneOut), "names of the dumps", json_text(name));
}

ResultReader OverDumpsReader::results_in(const std::filesystem::path& below,
                                         const std::string& fingerprint) const {
  ResultReader results(folder_ / below);
  const std::string found = results.summary()["dump"].value("fingerprint", "");
  if (found != fingerprint)
    throw InputError((folder_ / below).string(),
                     fmt::format("results of the dump with the fingerprint {}", fingerprint),
                     found.empty() ? "none" : found);
  return results;
}

std::vector<OverDumpsReader::Figure> OverDumpsReader::means(Table table,
                                                            const std::filesystem::path& path) const {
  const std::vector<std::string> names = figure_keys(table);
  std::vector<Figure> figures;
  CsvReader csv(path);
  std::vector<std::size_t> keys;
  for (const std::string& name : names) keys.push_back(csv.need(name));
  std::vector<std::size_t> at;
  for (const std::string& name : split_list(kMeanColumns)) at.push_back(csv.need(name));
  std::vector<std::string> row;
  while (csv.next(row)) {
    if (!row[keys[0]].empty() || !row[keys[1]].empty()) continue;
    Figure figure;
    for (std::size_t k = kPlace; k < keys.size(); ++k) figure.key.push_back(row[keys[k]]);
    const auto value = [&](std::size_t column) { return csv.number_or_nan(row, at[column]); };
    figure.over = {csv.index(row, at[0]), value(1), value(2), value(3), value(4), value(5)};
    figure.dumps.assign(dumps_.size(), kNan);
    figures.push_back(std::move(figure));
  }
  if (const auto totals = summary_.find("totals"); totals != summary_.end() && totals->is_object()) {
    const auto count = totals->find(fmt::format("{}_over_dumps_rows", name_of(table)));
    if (count != totals->end() && count->is_number_unsigned() && count->get<std::size_t>() != csv.rows())
      throw InputError(path.string(), count->dump() + " rows, as summary.json says",
                       fmt::format("{}", csv.rows()));
  }
  return figures;
}

std::vector<OverDumpsReader::Figure> OverDumpsReader::model_figures(Table table) const {
  const std::filesystem::path path = folder_ / means_file_of(table);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {};
  std::vector<Figure> figures = means(table, path);
  using Places = std::map<std::vector<std::string>, std::size_t>;
  Places places, of_derived[2];
  std::vector<Figure> derived[2];  // which the dumps' tables do not have as such
  for (const Figure& figure : figures)
    if (!places.try_emplace(figure.key, places.size()).second)
      throw InputError(path.string(), "every row once", "two of " + joined(figure.key));
  for (std::size_t dump = 0; dump < dumps_.size(); ++dump)
    for (const ResultReader* const results :
         {&dumps_[dump], left_one_out_[dump] ? &*left_one_out_[dump] : nullptr}) {
      if (results == nullptr || !results->has(table)) continue;
      MetricTable of(*results, table);
      of.name_windows(*results);
      for (const MetricEntry& entry : of.entries())
        if (const auto at = places.find(entry.key); has_row(entry.model) && at != places.end())
          figures[at->second].dumps[dump] = entry.model;
      const std::vector<MetricEntry> more[] = {median_heads(of), measured_metrics(*results, of)};
      for (std::size_t k = 0; k < std::size(more); ++k)
        for (const MetricEntry& entry : more[k]) {
          const auto [at, is_new] = of_derived[k].try_emplace(entry.key, derived[k].size());
          if (is_new) derived[k].push_back({entry.key, {}, std::vector<double>(dumps_.size(), kNan)});
          derived[k][at->second].dumps[dump] = entry.model;
        }
    }
  for (const Figure& figure : figures) {
    const FigureFacts* const facts = figure_named(table, figure.key.back());
    const OverDumps own = over_dumps(figure.dumps, facts != nullptr ? facts->scale : FigureScale::linear);
    if (own.n != figure.over.n || !same_mean(own.mean, figure.over.mean, figure.dumps))
      throw InputError(
          fmt::format("{}: {}", path.string(), joined(figure.key)),
          fmt::format("{} of {} dumps, as their own tables say", mean_text({own.n, own.mean}), own.n),
          fmt::format("{} of {}", mean_text({figure.over.n, figure.over.mean}), figure.over.n));
  }
  for (std::vector<Figure>& more : derived)
    for (Figure& figure : more) {
      figure.over = over_dumps(figure.dumps, FigureScale::log);  // errors, nats
      if (figure.over.n > 1) figures.push_back(std::move(figure));
    }
  return figures;
}

}  // namespace kvreplay
