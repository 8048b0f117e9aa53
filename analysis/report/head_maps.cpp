#include "analysis/report/cell_map.hpp"
#include "analysis/report/sections.hpp"
#include "analysis/report/text.hpp"
#include "analysis/results/csv.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

namespace kvreplay::report {
namespace {

/// More numbers than that would make the page slow to open.
constexpr std::size_t kMostValues = 1'000'000;

/// What a map is of: a kind, its metric, and up to two words that tell it from others of the same metric.
using MapName = std::array<std::string, 4>;

constexpr const char* kAgreement = "agreement of a score";
constexpr const char* kSum = "a metric's sum over tokens";
constexpr const char* kEviction = "an eviction";
constexpr const char* kBudget = "a shared budget";
constexpr const char* kChannels = "channel pruning";

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(separator, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

/// From the names that analysis/RESULTS-FORMAT.md gives the files of maps/.
MapName name_of(const std::string& file) {
  const std::vector<std::string> parts = split(file, '~');
  if (parts.size() == 1) return {file.ends_with("_share") ? kChannels : kSum, file, "", ""};
  if (parts.size() == 2) return {kBudget, parts[1], parts[0], ""};
  const bool measured = parts[1].empty() || parts[1] == "window" || parts[1] == "future";
  if (!measured) {
    if (parts.size() == 3) return {kAgreement, parts[2], parts[0], parts[1]};
    return {kAgreement, parts[2], parts[0], fmt::format("{}, {}", parts[1], parts[3])};
  }
  const bool channels = split(parts[0], '-').size() == 2;
  return {channels ? kChannels : kEviction, parts[2], parts[0], rows_text(parts[1])};
}

/// Maps of one scale have colours that can be compared.
std::string scale_of(const MapName& name) {
  return fmt::format("{}~{}~{}", name[0], name[1], name[0] == kAgreement ? "" : name[3]);
}

struct HeadMap {
  std::string file;
  MapName name;
  Matrix<double> values;
  std::string scale;
};

/// The figures that stay where there are too many: what the rest is mostly a variation of.
bool is_main(const std::string& metric) {
  return !metric.starts_with("mass@") && (!metric.starts_with("recall@") || metric == "recall@10%");
}

std::vector<std::string> chosen_files(const ResultReader& results, bool& thinned) {
  std::vector<std::string> files = results.map_names();
  const auto cells = results.layers().size() * static_cast<std::size_t>(results.shape().n_kv);
  thinned = files.size() * cells > kMostValues;
  if (!thinned) return files;
  std::erase_if(files, [](const std::string& file) { return !is_main(name_of(file)[1]); });
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
      if (maps[i].name[1] == metric) return i;
  return 0;
}

std::vector<HeadMap> read_maps(const ResultReader& results, const std::vector<std::string>& files) {
  std::vector<HeadMap> maps;
  for (const std::string& file : files) {
    HeadMap map{file, name_of(file), results.map(file), ""};
    map.scale = scale_of(map.name);
    maps.push_back(std::move(map));
  }
  // By kind in the order of the analyses; within it as the files are sorted.
  const std::array<std::string, 5> kinds{kAgreement, kSum, kEviction, kBudget, kChannels};
  std::stable_sort(maps.begin(), maps.end(), [&](const HeadMap& a, const HeadMap& b) {
    const auto rank = [&](const HeadMap& m) { return std::find(kinds.begin(), kinds.end(), m.name[0]); };
    return rank(a) < rank(b);
  });
  return maps;
}

std::map<std::string, ColorScale> scales_of(const std::vector<HeadMap>& maps) {
  std::map<std::string, std::vector<double>> values;
  std::map<std::string, std::string> metrics;
  for (const HeadMap& map : maps) {
    auto& all = values[map.scale];
    all.insert(all.end(), map.values.data(), map.values.data() + map.values.size());
    metrics[map.scale] = map.name[1];
  }
  std::map<std::string, ColorScale> scales;
  for (const auto& [name, all] : values) scales[name] = color_scale(metrics[name], all);
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
  json += "],\"maps\":[";
  for (std::size_t i = 0; i < maps.size(); ++i) {
    const HeadMap& map = maps[i];
    json +=
        fmt::format("{}{{\"name\":[{},{},{},{}],\"scale\":{},\"values\":{}}}", i == 0 ? "" : ",",
                    json_string(map.name[0]), json_string(map.name[1]), json_string(map.name[2]),
                    json_string(map.name[3]), number[map.scale],
                    json_numbers(std::span(map.values.data(), static_cast<std::size_t>(map.values.size()))));
  }
  return json + "]}";
}

/// A row a head and a column a map.
std::string csv_of(const ResultReader& results, const std::vector<HeadMap>& maps) {
  std::string csv = "layer,kv_head";
  for (const HeadMap& map : maps) csv += fmt::format(",{}", csv_field(map.file));
  csv += '\n';
  for (Index r = 0; r < static_cast<Index>(results.layers().size()); ++r)
    for (Index h = 0; h < results.shape().n_kv; ++h) {
      csv += fmt::format("{},{}", results.layers()[static_cast<std::size_t>(r)], h);
      for (const HeadMap& map : maps) csv += fmt::format(",{}", shortest(map.values(r, h)));
      csv += '\n';
    }
  return csv;
}

}  // namespace

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
  CellMap cells;
  cells.id = "head-map";
  cells.title = fmt::format("{} of every head", first.file);
  for (const Index layer : results.layers()) cells.rows.push_back(std::to_string(layer));
  for (Index head = 0; head < results.shape().n_kv; ++head) cells.columns.push_back(std::to_string(head));
  cells.row_label = "layer";
  cells.column_label = "KV head";
  cells.values = first.values;
  cells.scale = scales.at(first.scale);
  for (const std::string& part : first.name)
    if (!part.empty()) cells.value_label += fmt::format("{}{}", cells.value_label.empty() ? "" : ", ", part);
  cells.numbers = results.shape().n_kv <= 8 && results.layers().size() <= 40;

  Figure figure;
  figure.name = "head-map";
  figure.heading = "One figure of every head";
  figure.reading =
      "Layers downwards, KV heads across. The colours of one figure are the same for all scores, policies "
      "and "
      "methods, so that they can be compared; hatched heads have no value (nothing to rank, no error at "
      "all).";
  if (thinned)
    figure.note = fmt::format("Of {} maps {} are in this page; maps/ holds all.", results.map_names().size(),
                              maps.size());
  const std::string svg = svg_of(cells);
  figure.body = fmt::format("{}<div class=\"scroll\" data-kind=\"cells\">{}{}</div>",
                            picks_html({{"figure", {first.name[0]}},
                                        {"metric", {first.name[1]}},
                                        {"of", {first.name[2]}},
                                        {"against or on", {first.name[3]}}}),
                            svg, data_html(json_of(maps, scales)));
  figure.files = {svg_file(figure.name, svg), csv_file(figure.name, csv_of(results, maps))};
  section.figures.push_back(std::move(figure));
  return section;
}

}  // namespace kvreplay::report
