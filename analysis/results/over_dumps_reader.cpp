#include "analysis/results/over_dumps_reader.hpp"

#include "analysis/results/dump_set.hpp"
#include "analysis/results/result_folder.hpp"
#include "analysis/results/text_file.hpp"
#include "analysis/results/validation.hpp"
#include "data/error.hpp"
#include "data/json_fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvreplay {
namespace {

constexpr std::uintmax_t kMostSummary = std::uintmax_t{1} << 28;
constexpr std::size_t kPlace = 2;  // keys of a figure's place: layer, kv_head

/// Whether two means of `values` are equal but for what compilers make of the same sum.
bool same_mean(double a, double b, std::span<const double> values) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return true;
  double size = 0;
  for (const double value : values)
    if (std::isfinite(value)) size = std::max(size, std::abs(value));
  return std::abs(a - b) <= 1e-12 * size * static_cast<double>(values.size());
}

std::string means_file_of(Table table) { return fmt::format("{}_over_dumps.csv", name_of(table)); }

}  // namespace

bool OverDumpsReader::is_over_dumps(const std::filesystem::path& folder) {
  if (!ResultReader::is_results(folder)) return false;
  const auto json = json_object_in(folder / "summary.json");
  return json && json->value("kind", nlohmann::ordered_json()) == kOverDumps;
}

OverDumpsReader::OverDumpsReader(std::filesystem::path folder) : folder_(std::move(folder)) {
  const std::string where = (folder_ / "summary.json").string();
  const std::string text = file_text(folder_ / "summary.json", kMostSummary);
  const nlohmann::json plain = parse_json_object(text, where);
  const auto field = [&](const nlohmann::json& object, const char* key, const std::string& of) {
    const auto found = object.find(key);
    return std::pair(found == object.end() ? nlohmann::json() : *found, fmt::format("{}: {}", of, key));
  };
  for (const auto& [key, wanted] : {std::pair<const char*, nlohmann::json>{"program", "kvreplay"},
                                    {"schema", kResultSchema},
                                    {"kind", kOverDumps}}) {
    const auto [value, name] = field(plain, key, where);
    if (value != wanted)
      throw InputError(name, json_text(wanted), value.is_null() ? "none" : json_text(value));
  }
  const auto [list, list_name] = field(plain, "dumps", where);
  if (!list.is_array() || list.empty())
    throw InputError(list_name, "a list of dumps", list.is_null() ? "none" : json_text(list));
  const auto [others, others_name] = field(plain, kLeaveOneOut, where);
  if (!others.is_null() && !others.is_array())
    throw InputError(others_name, "a list of dumps", json_text(others));
  summary_ = nlohmann::ordered_json::parse(text);
  for (const nlohmann::json& dump : list) {
    for (const char* key : {"name", "fingerprint"})
      if (!dump.is_object() || !dump.contains(key) || !dump[key].is_string())
        throw InputError(list_name, fmt::format("a {} of every dump", key), json_text(dump));
    const std::string name = dump["name"];
    if (name.empty() || name == ".." || name == "." || std::filesystem::path(name).filename() != name)
      throw InputError(list_name, "names of folders in it", fmt::format("'{}'", name));
    names_.push_back(name);
    dumps_.push_back(results_in(name, dump["fingerprint"]));
    left_one_out_.emplace_back();
    if (std::find(others.begin(), others.end(), nlohmann::json(name)) != others.end())
      left_one_out_.back() = results_in(std::filesystem::path(kLeaveOneOut) / name, dump["fingerprint"]);
  }
  for (const nlohmann::json& name : others)
    if (!name.is_string() || std::find(names_.begin(), names_.end(), name.get<std::string>()) == names_.end())
      throw InputError(others_name, "names of the dumps", json_text(name));
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
  const std::size_t n = csv.need("n"), mean = csv.need("mean"), sd = csv.need("sd"),
                    geometric = csv.need("geometric_mean"), low = csv.need("ci_low"),
                    high = csv.need("ci_high");
  std::vector<std::string> row;
  while (csv.next(row)) {
    if (!row[keys[0]].empty() || !row[keys[1]].empty()) continue;
    Figure figure;
    for (std::size_t k = kPlace; k < keys.size(); ++k) figure.keys.push_back(row[keys[k]]);
    figure.over = {csv.index(row, n),           csv.number_or_nan(row, mean),
                   csv.number_or_nan(row, sd),  csv.number_or_nan(row, geometric),
                   csv.number_or_nan(row, low), csv.number_or_nan(row, high)};
    figure.dumps.assign(dumps_.size(), std::numeric_limits<double>::quiet_NaN());
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
  Names places;
  for (const Figure& figure : figures)
    if (!places.add(joined(figure.keys)).second)
      throw InputError(path.string(), "every row once", "two of " + joined(figure.keys));
  for (std::size_t i = 0; i < dumps_.size(); ++i)
    for (const ResultReader* const results : {&dumps_[i], left_one_out_[i] ? &*left_one_out_[i] : nullptr}) {
      if (results == nullptr || !results->has(table)) continue;
      each_figure_of_prompt(*results, table, [&](const TableFigure& figure) {
        if (figure.level() != Level::model) return;
        if (const auto at = places.find(joined(figure.keys.subspan(kPlace))))
          figures[*at].dumps[i] = figure.value;
      });
    }
  for (const Figure& figure : figures) {
    const FigureFacts* const facts = figure_named(table, figure.keys.back());
    RunningMean over(facts != nullptr ? facts->scale : FigureScale::linear);
    for (const double value : figure.dumps) over.add(value);
    const OverDumps own = over.result();
    if (own.n != figure.over.n || !same_mean(own.mean, figure.over.mean, figure.dumps))
      throw InputError(
          fmt::format("{}: {}", path.string(), joined(figure.keys)),
          fmt::format("{} of {} dumps, as their own tables say", mean_text({own.n, own.mean}), own.n),
          fmt::format("{} of {}", mean_text({figure.over.n, figure.over.mean}), figure.over.n));
  }
  for (const auto& each : {each_median_head, each_measured})
    for (Figure& figure : derived(table, each)) figures.push_back(std::move(figure));
  return figures;
}

std::vector<OverDumpsReader::Figure> OverDumpsReader::derived(Table table, EachFigure each) const {
  std::vector<Figure> figures;
  Names places;
  for (std::size_t i = 0; i < dumps_.size(); ++i)
    for (const ResultReader* const results : {&dumps_[i], left_one_out_[i] ? &*left_one_out_[i] : nullptr}) {
      if (results == nullptr || !results->has(table)) continue;
      each(*results, table, [&](const TableFigure& figure) {
        const std::span<const std::string> keys = figure.keys.subspan(kPlace);
        const auto [at, is_new] = places.add(joined(keys));
        if (is_new)
          figures.push_back({{keys.begin(), keys.end()},
                             {},
                             std::vector<double>(dumps_.size(), std::numeric_limits<double>::quiet_NaN())});
        figures[at].dumps[i] = figure.value;
      });
    }
  for (Figure& figure : figures) {
    RunningMean over(FigureScale::log);  // errors and nats
    for (const double value : figure.dumps) over.add(value);
    figure.over = over.result();
  }
  std::erase_if(figures, [](const Figure& figure) { return figure.over.n < 2; });
  return figures;
}

}  // namespace kvreplay
