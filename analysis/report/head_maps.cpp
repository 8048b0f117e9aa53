#include "analysis/report/cell_map.hpp"
#include "analysis/report/figure.hpp"
#include "analysis/report/sections.hpp"
#include "analysis/report/text.hpp"
#include "analysis/results/csv.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/map_name.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

namespace kvreplay::report {
namespace {

/// More numbers than that would make the page slow to open.
constexpr std::size_t kMostValues = 1'000'000;

/// True for maps of budgets, "<order>-<method>-<sigma>", whose method knows the decoding steps.
bool divided_by_oracle(const MapName& name) {
  if (name.table != Table::budgets) return false;
  const std::size_t method = name.item.find('-') + 1;  // 0 of other names, of which no method is the begin
  return is_oracle(Table::budgets, "method", name.item.substr(method, name.item.find('-', method) - method));
}

/// Entries of the lists that select a map: its kind, its metric, and up to two words that distinguish it from
/// other maps of this kind and metric.
std::array<std::string, 4> picks_of(const MapName& name) {
  std::string against = name.table == Table::agreement ? name.against : rows_text(name.against);
  if (name.window) against += fmt::format(", window {}", *name.window);
  if (name.reserve) against += fmt::format(", reserve{}", *name.reserve);
  return {kind_of_map(name.table), name.figure, name.item + (divided_by_oracle(name) ? " (oracle)" : ""),
          against};
}

/// Maps of one scale have colours that can be compared.
std::string scale_of(const MapName& name) {
  return fmt::format("{}~{}~{}", kind_of_map(name.table), name.figure,
                     name.table == Table::agreement ? "" : picks_of(name)[3]);
}

struct HeadMap {
  std::string file;
  MapName name;
  std::array<std::string, 4> picks;
  Matrix<double> values;
  std::string scale;
};

/// The name of a map; of a file that none can have, it is the figure.
MapName name_of_file(const std::string& file) {
  return map_named(file).value_or(MapName{.table = Table::heads, .figure = file});
}

/// The figures that stay where there are too many: what the rest is mostly a variation of.
bool is_main(const MapName& name) {
  const FigureFacts* const facts = figure_named(name.table, name.figure);
  return name.table != Table::agreement || facts == nullptr || facts->offered ||
         facts->scale != FigureScale::share;
}

std::vector<std::string> chosen_files(const ResultReader& results, bool& thinned) {
  std::vector<std::string> files = results.map_names();
  const auto cells = results.layers().size() * static_cast<std::size_t>(results.shape().n_kv);
  thinned = files.size() * cells > kMostValues;
  if (!thinned) return files;
  std::erase_if(files, [](const std::string& file) { return !is_main(name_of_file(file)); });
  const std::size_t most = std::max<std::size_t>(kMostValues / std::max<std::size_t>(cells, 1), 1);
  if (files.size() > most) {  // evictions are the many: evenly spaced ones of them all
    std::vector<std::string> some;
    for (std::size_t i = 0; i < most; ++i) some.push_back(files[i * files.size() / most]);
    files = std::move(some);
  }
  return files;
}

std::size_t first_map(const std::vector<HeadMap>& maps) {
  for (const auto& wanted : {"attn~exact_remove~spearman", "value~exact_remove~spearman"})
    for (std::size_t i = 0; i < maps.size(); ++i)
      if (maps[i].file == wanted) return i;
  for (const char* metric : {"spearman", "output_error"})
    for (std::size_t i = 0; i < maps.size(); ++i)
      if (maps[i].name.figure == metric) return i;
  return 0;
}

std::vector<HeadMap> read_maps(const ResultReader& results, const std::vector<std::string>& files) {
  std::vector<HeadMap> maps;
  for (const std::string& file : files) {
    MapName name = name_of_file(file);
    maps.push_back({file, name, picks_of(name), results.map(file), scale_of(name)});
  }
  // Agreement, which says most, then the tables in their order; within one as the files are sorted.
  std::ranges::stable_sort(maps, [](const HeadMap& a, const HeadMap& b) {
    const auto rank = [](const HeadMap& map) {
      return std::pair(map.name.table != Table::agreement, map.name.table);
    };
    return rank(a) < rank(b);
  });
  return maps;
}

std::map<std::string, ColorScale> scales_of(const std::vector<HeadMap>& maps) {
  std::map<std::string, std::vector<double>> values;
  std::map<std::string, FigureScale> figures;
  for (const HeadMap& map : maps) {
    auto& all = values[map.scale];
    all.insert(all.end(), map.values.data(), map.values.data() + map.values.size());
    const FigureFacts* const facts = figure_named(map.name.table, map.name.figure);
    figures[map.scale] = facts == nullptr ? FigureScale::linear : facts->scale;
  }
  std::map<std::string, ColorScale> scales;
  for (const auto& [name, all] : values) scales[name] = color_scale(figures[name], all);
  return scales;
}

std::string json_of(const std::vector<HeadMap>& maps, const std::map<std::string, ColorScale>& scales) {
  std::string json = "{\"scales\":[";
  std::map<std::string, std::size_t> number;
  for (const auto& [name, scale] : scales) {
    json += fmt::format(R"({}{{"low":{},"high":{},"log":{},"diverging":{},"flipped":{}}})",
                        number.empty() ? "" : ",", scale.low, scale.high, scale.log, scale.diverging,
                        scale.flipped);
    number.emplace(name, number.size());
  }
  return json + "],\"maps\":" +
         json_list(maps,
                   [&](const HeadMap& map) {
                     return fmt::format("{{\"name\":{},\"scale\":{},\"values\":{}}}",
                                        json_list(map.picks, json_string), number[map.scale],
                                        json_numbers(std::span(map.values.data(),
                                                               static_cast<std::size_t>(map.values.size()))));
                   }) +
         "}";
}

/// A row a head and a column a map.
std::string csv_of(const ResultReader& results, const std::vector<HeadMap>& maps) {
  std::vector<std::string> columns{"layer", "kv_head"};
  for (const HeadMap& map : maps) columns.push_back(map.file);
  CsvTable csv(joined(columns));
  for (Index r = 0; r < std::ssize(results.layers()); ++r)
    for (Index h = 0; h < results.shape().n_kv; ++h) {
      csv.add(results.layers()[r]).add(h);
      for (const HeadMap& map : maps) csv.add(map.values(r, h));
      csv.end_row();
    }
  return csv.take();
}

}  // namespace

const char* kind_of_map(Table table) {
  switch (table) {
    case Table::heads:
      return "a metric's sum over tokens";
    case Table::agreement:
      return "agreement of a score";
    case Table::evictions:
      return "an eviction";
    case Table::budgets:
      return "a shared budget";
    case Table::channels:
      return "channel pruning";
    case Table::compensation:
      return "a compensated eviction";
    case Table::decode:
    case Table::diff:
      break;  // without maps
  }
  return "";
}

Section head_map_section(const Tables& tables) {
  const ResultReader& results = tables.results;
  Section section{"heads", "Head by head", "", {}, ""};
  bool thinned = false;
  const std::vector<HeadMap> maps = read_maps(results, chosen_files(results, thinned));
  if (maps.empty() || maps.front().values.size() == 0) {
    section.missing = "No maps of heads; kvreplay tokens, evict, budget, channels and analyze write them.";
    return section;
  }
  const auto scales = scales_of(maps);
  const HeadMap& first = maps[first_map(maps)];
  CellMap cells = map_of_heads(results, first.values);
  cells.id = "head-map";
  cells.title = fmt::format("{} of every head", first.file);
  cells.scale = scales.at(first.scale);
  for (const std::string& part : first.picks)
    if (!part.empty()) cells.value_label += fmt::format("{}{}", cells.value_label.empty() ? "" : ", ", part);

  Figure figure;
  figure.name = "head-map";
  figure.heading = "One figure of every head";
  figure.reading =
      "Layers downwards, KV heads across. The colours of one figure are the same for all scores, policies "
      "and methods, so that they can be compared; hatched heads have no value (nothing to rank, no error at "
      "all).";
  if (thinned)
    figure.note = fmt::format("Of {} maps {} are in this page; maps/ holds all.", results.map_names().size(),
                              maps.size());
  add_drawing(figure,
              {{"figure", {first.picks[0]}},
               {"metric", {first.picks[1]}},
               {"of", {first.picks[2]}},
               {"against or on", {first.picks[3]}}},
              "cells", svg_of(cells), json_of(maps, scales), csv_of(results, maps));
  section.figures.push_back(std::move(figure));
  return section;
}

}  // namespace kvreplay::report
