#include "viewer/work/figure_map.hpp"

#include "analysis/results/result_reader.hpp"
#include "data/error.hpp"
#include "viewer/model/numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace kvreplay::viewer {
namespace {

/// A map of the tokens stage: of the run's first reserve, or of the one in its name.
struct TokenMap {
  HeadFigure figure;
  Index reserve = 0;
  std::string name;
};
std::optional<TokenMap> token_map_named(const std::string& name, Index first_reserve) {
  constexpr std::string_view kReserve = "~reserve";
  TokenMap map{{}, first_reserve, name};
  std::string_view rest = name;
  if (const std::size_t at = rest.rfind(kReserve); at != std::string_view::npos) {
    const std::string_view digits = rest.substr(at + kReserve.size());
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), map.reserve);
    if (error != std::errc() || end != digits.data() + digits.size() || map.reserve < 0) return std::nullopt;
    rest = rest.substr(0, at);
  }
  const auto figure = head_figure_named(rest);
  if (!figure) return std::nullopt;
  map.figure = *figure;
  if (!figure->reference) map.reserve = 0;
  return map;
}

/// The reserve of maps that do not name one: the first that the run was asked for.
Index first_reserve(const ResultReader& results) {
  const nlohmann::ordered_json* at = &results.summary();
  for (const char* key : {"options", "tokens", "reserve"}) {
    if (!at->is_object() || !at->contains(key)) return 0;
    at = &(*at)[key];
  }
  return at->is_array() && !at->empty() && at->front().is_number_unsigned() ? at->front().get<Index>() : 0;
}

/// Metrics, then agreement by reference, score, reserve and figure.
std::vector<FigureInfo> token_figures(const ResultReader& results) {
  std::vector<TokenMap> maps;
  const Index reserve = first_reserve(results);
  for (const std::string& name : results.map_names())
    if (const auto map = token_map_named(name, reserve)) maps.push_back(*map);
  std::sort(maps.begin(), maps.end(), [](const TokenMap& a, const TokenMap& b) {
    const auto key = [](const TokenMap& map) {
      return std::tuple(map.figure.reference, map.figure.metric, map.reserve, map.figure.figure);
    };
    return key(a) < key(b);
  });
  std::vector<FigureInfo> figures;
  for (const TokenMap& map : maps) {
    figures.push_back(figure_info(map.figure, map.reserve));
    figures.back().name = map.name;
  }
  return figures;
}

/// How figures stand in a table: those of one row are told apart by its fields.
struct TableLayout {
  const char* file;
  FigureGroup group;
  std::vector<std::string_view> fields;   ///< of the menu's path, outermost first
  std::vector<std::string_view> columns;  ///< a figure each; "value" alone: the last field names the figure
  std::string (*title)(const std::vector<std::string>& path);  ///< of the fields and the figure's name
};

std::string behind(std::string_view rows) { return rows.empty() ? "" : fmt::format(", {} rows", rows); }

const TableLayout& layout_of(FigureGroup group) {
  static const TableLayout layouts[] = {
      {"evictions.csv",
       FigureGroup::evictions,
       {"policy", "semantics", "phase", "budget", "rows", "metric"},
       {"value"},
       [](const auto& p) {
         return fmt::format("{} of {} ({}, {}) at {}{}", p[5], p[0], p[1], p[2], p[3], behind(p[4]));
       }},
      {"decode.csv",
       FigureGroup::decode,
       {"policy", "semantics", "budget", "metric"},
       {"value"},
       [](const auto& p) {
         return fmt::format("{} output_error over the steps of {} ({}) at {}", p[3], p[0], p[1], p[2]);
       }},
      {"budgets.csv",
       FigureGroup::budgets,
       {"order", "method", "sigma"},
       {"budget", "loss", "output_error"},
       [](const auto& p) { return fmt::format("{} of {} by {} at {}", p[3], p[1], p[0], p[2]); }},
      {"channels.csv",
       FigureGroup::channels,
       {"method", "ratio", "rows", "metric"},
       {"value"},
       [](const auto& p) {
         return p[0].empty() ? p[3] + behind(p[2])
                             : fmt::format("{} of {} at {}{}", p[3], p[0], p[1], behind(p[2]));
       }},
  };
  return *std::find_if(std::begin(layouts), std::end(layouts),
                       [&](const TableLayout& layout) { return layout.group == group; });
}

/// Takes the rows of heads out of a table, a map a figure.
class TableMaps {
 public:
  TableMaps(const ResultReader& results, const TableLayout& layout) : results_(results), layout_(layout) {
    results.each_row(layout.file,
                     [this](const CsvReader& csv, const std::vector<std::string>& row) { take(csv, row); });
  }
  std::vector<FigureInfo> figures;
  std::vector<Matrix<double>> maps;

 private:
  void take(const CsvReader& csv, const std::vector<std::string>& row) {
    if (field_at_.empty()) {
      layer_at_ = csv.need("layer");
      head_at_ = csv.need("kv_head");
      for (const std::string_view field : layout_.fields) field_at_.push_back(csv.need(field));
      for (const std::string_view column : layout_.columns) column_at_.push_back(csv.need(column));
    }
    if (row[head_at_].empty()) return;  // a whole layer's, or the model's
    const Index layer = csv.index(row, layer_at_), head = csv.index(row, head_at_);
    const std::vector<Index>& layers = results_.layers();
    const auto place = std::lower_bound(layers.begin(), layers.end(), layer);
    if (place == layers.end() || *place != layer || head >= results_.shape().n_kv)
      throw InputError(fmt::format("{}: expected heads of the run, found layer {}, head {}",
                                   (results_.folder() / layout_.file).string(), layer, head));
    for (std::size_t c = 0; c < column_at_.size(); ++c)
      if (!row[column_at_[c]].empty())
        maps[index_of(row, layout_.columns[c])](place - layers.begin(), head) =
            csv.number(row, column_at_[c]);
  }

  std::size_t index_of(const std::vector<std::string>& row, std::string_view column) {
    key_ = name_of(layout_.group);
    for (const std::size_t at : field_at_) key_.append("~").append(row[at]);
    if (column != "value") key_.append("~").append(column);
    const auto [found, is_new] = index_.try_emplace(key_, maps.size());
    if (is_new) add(row, column);
    return found->second;
  }

  void add(const std::vector<std::string>& row, std::string_view column) {
    FigureInfo info;
    info.name = key_;
    info.group = layout_.group;
    for (const std::size_t at : field_at_) info.path.push_back(row[at]);
    if (column != "value") info.path.emplace_back(column);
    info.title = layout_.title(info.path);
    if (const TableFigure* known = table_figure_named(info.path.back())) {
      info.unit = known->unit;
      info.larger_is_worse = known->larger_is_worse;
      info.scale = known->scale;
    }
    if (info.path.front().empty()) info.path = {info.path.back()};  // of no method
    std::erase(info.path, std::string());
    figures.push_back(std::move(info));
    maps.push_back(
        Matrix<double>::Constant(static_cast<Index>(results_.layers().size()), results_.shape().n_kv, kNone));
  }

  const ResultReader& results_;
  const TableLayout& layout_;
  std::size_t layer_at_ = 0, head_at_ = 0;
  std::vector<std::size_t> field_at_, column_at_;
  std::string key_;
  std::unordered_map<std::string, std::size_t> index_;
};

}  // namespace

std::vector<FigureInfo> dump_figures(const MetricSet& metrics, Index n) {
  std::vector<FigureInfo> figures;
  for (const HeadFigure& figure : head_figures(metrics, n)) figures.push_back(figure_info(figure));
  return figures;
}

FigureMap empty_map(FigureInfo figure, std::vector<Index> layers, Index n_kv) {
  FigureMap map;
  map.figure = std::move(figure);
  map.values = Matrix<double>::Constant(static_cast<Index>(layers.size()), n_kv, kNone);
  map.layers = std::move(layers);
  return map;
}

void add(FigureMap& map, const HeadSummary& head) {
  const auto row = std::find(map.layers.begin(), map.layers.end(), head.layer);
  if (row == map.layers.end() || head.kv_head < 0 || head.kv_head >= map.values.cols()) return;
  const auto figure = head_figure_named(map.figure.name);
  map.values(row - map.layers.begin(), head.kv_head) = figure ? head.value(*figure) : kNone;
  ++map.heads;
}

const FigureInfo* ResultFigures::find(std::string_view name) const {
  const auto found =
      std::find_if(figures.begin(), figures.end(), [&](const FigureInfo& info) { return info.name == name; });
  return found == figures.end() ? nullptr : &*found;
}

std::size_t bytes_of(const ResultFigures& figures) {
  constexpr std::size_t kInfoBytes = 512;  // names, path and title, roughly
  std::size_t bytes = sizeof(figures) + figures.figures.size() * kInfoBytes;
  for (const auto& [name, values] : figures.from_tables)
    bytes += static_cast<std::size_t>(values.size()) * sizeof(double);
  return bytes;
}

ResultFigures result_figures(const ResultReader& results) {
  ResultFigures all;
  all.figures = token_figures(results);
  for (const FigureGroup group :
       {FigureGroup::evictions, FigureGroup::decode, FigureGroup::budgets, FigureGroup::channels}) {
    const TableLayout& layout = layout_of(group);
    if (!results.has(layout.file)) continue;
    try {
      TableMaps table(results, layout);
      for (std::size_t f = 0; f < table.maps.size(); ++f) {
        all.from_tables.emplace(table.figures[f].name, std::move(table.maps[f]));
        all.figures.push_back(std::move(table.figures[f]));
      }
    } catch (const InputError& error) {
      all.problems.emplace_back(error.what());
    }
  }
  return all;
}

FigureMap figure_map(const ResultReader& results, const ResultFigures& figures, std::string_view name) {
  const FigureInfo* info = figures.find(name);
  if (info == nullptr)
    throw InputError(fmt::format("{}: no figure {} in these results", results.folder().string(), name));
  FigureMap map = empty_map(*info, results.layers(), results.shape().n_kv);
  const auto found = figures.from_tables.find(name);
  map.values = found != figures.from_tables.end() ? found->second : results.map(info->name);
  map.heads = map.values.size();
  return map;
}

std::vector<HeadPlace> worst_first(const FigureMap& map, bool larger_is_worse) {
  std::vector<HeadPlace> heads;
  for (Index row = 0; row < map.values.rows(); ++row)
    for (Index head = 0; head < map.values.cols(); ++head)
      heads.push_back({row, map.layers[static_cast<std::size_t>(row)], head, map.values(row, head)});
  std::stable_sort(heads.begin(), heads.end(), [&](const HeadPlace& a, const HeadPlace& b) {
    if (std::isnan(a.value) || std::isnan(b.value)) return !std::isnan(a.value) && std::isnan(b.value);
    return larger_is_worse ? a.value > b.value : a.value < b.value;
  });
  return heads;
}

std::vector<HeadPlace> worst_first(const FigureMap& map) {
  return worst_first(map, map.figure.larger_is_worse.value_or(true));
}

}  // namespace kvreplay::viewer
