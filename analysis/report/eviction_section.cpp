#include "analysis/eviction/eviction_options.hpp"
#include "analysis/findings/findings.hpp"
#include "analysis/report/cell_map.hpp"
#include "analysis/report/figure.hpp"
#include "analysis/report/picked_lines.hpp"
#include "analysis/report/plots.hpp"
#include "analysis/report/sections.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/map_name.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::report {
namespace {

std::optional<Figure> budget_figure(const Tables& tables) {
  const std::vector<const FigureFacts*> offered = offered_figures(Table::evictions);
  const bool reads = std::ranges::any_of(tables.evictions.distinct("policy"), evicts_nothing);
  return model_figure(
      tables.evictions,
      {.name = "error-by-budget",
       .heading = "Error by budget",
       .reading = fmt::format(
           "Each line is a policy: the same base has the same colour and marker, the score on top of it "
           "another dash. {}; a line that falls late keeps the wrong tokens first. Zeros stand on the lower "
           "edge.{}",
           directions_text(offered),
           reads ? " Of a policy that keeps the whole prompt (quest, sparq, ..) it is the tokens that a row "
                   "reads."
                 : ""),
       .figures = offered,
       .item = "policy",
       .setting = "budget",
       .keys = {"rows", "phase", "semantics"},
       .labels = {"metric", "on the", "phase", "semantics"},
       .x = kTokensKept,
       .prompt = tables.results.shape().l,
       .title = [](const std::string& figure, const std::vector<std::string>& of) {
         return fmt::format("{} by tokens kept{}, phase {}, {}", figure,
                            of[0].empty() ? "" : ", on the " + of[0], of[1], of[2]);
       }});
}

/// Where caches are stored in several formats, or some are read in part: tokens do not say what they take.
std::optional<Figure> bytes_figure(const MetricTable& table) {
  const std::vector<std::string> metrics = table.distinct("metric");
  const bool reads = is_in(metrics, name_of(EvictionFigure::bytes_read));
  const std::string_view of_cache = name_of(reads ? EvictionFigure::bytes_read : EvictionFigure::bytes);
  if (!reads && std::ranges::none_of(table.distinct("policy", {}), [](const std::string& policy) {
        return policy.find('~') != std::string::npos;
      }))
    return std::nullopt;
  Variants plots("error-by-bytes");
  const std::vector<const FigureFacts*> offered = offered_figures(Table::evictions);
  for (const FigureFacts* const facts : offered) {
    if (facts->unit == kBytesKind.unit) continue;
    for (const Wanted& choice : table.choices({"rows", "phase", "semantics"}, {{"metric", facts->name}})) {
      LinePlot plot;
      std::vector<std::pair<double, std::pair<std::string, double>>> points;  // MiB, policy and figure
      std::vector<double> values;
      const std::vector<std::string> policies = table.distinct("policy", choice);
      for (const std::string& policy : policies)
        for (const std::string& budget : table.distinct("budget", with(choice, "policy", policy))) {
          const Wanted which = {{"policy", policy}, {"budget", budget}, choice[2], choice[3]};
          Wanted of_figure = choice, of_bytes = {{"metric", of_cache}};
          of_figure.insert(of_figure.end(), which.begin(), which.begin() + 2);
          of_bytes.insert(of_bytes.end(), which.begin(), which.end());
          const auto *const figure = table.find(of_figure), *const bytes = table.find(of_bytes);
          if (figure == nullptr || bytes == nullptr) continue;
          points.push_back({bytes->model / (1 << 20), {policy, figure->model}});
          values.push_back(figure->model);
        }
      if (points.empty()) continue;
      std::ranges::sort(points);
      const std::vector<LineStyle> styles = styles_by_name(policies);
      for (std::size_t i = 0; i < policies.size(); ++i)
        plot.lines.push_back({policies[i], styles[i], std::vector<double>(points.size(), kNan), policies[i]});
      for (std::size_t n = 0; n < points.size(); ++n) {
        plot.at.push_back(points[n].first);
        plot.lines[std::ranges::find(policies, points[n].second.first) - policies.begin()].values[n] =
            points[n].second.second;
      }
      plot.bridged = true;
      plot.x = linear_axis(reads ? "MiB that a row reads of the prompt's cache, all heads"
                                 : "MiB of the prompt's cache, all heads",
                           plot.at, true);
      plot.y = figure_axis(std::string(facts->name), facts->scale, values);
      std::vector<std::string> picked = shown_keys(table.table(), std::span(choice).subspan(1));
      plot.title = fmt::format("{} by the bytes {}{}, phase {}, {}", facts->name,
                               reads ? "that a row reads" : "of the cache",
                               picked[0].empty() ? "" : ", on the " + picked[0], picked[1], picked[2]);
      picked.insert(picked.begin(), std::string(facts->name));
      plots.add(std::move(picked), std::move(plot));
    }
  }
  return plots.figure({"metric", "on the", "phase", "semantics"}, "Error by bytes",
                      reads ? "Each mark is a policy at what a row reads of the cache, with what it chooses "
                              "by. Who evicts reads "
                              "all that it holds; who evicts nothing holds the whole prompt (bytes)."
                            : "Each mark is a policy in a format, at what its cache takes. Of two at the "
                              "same height the left one "
                              "is the better bargain.",
                      offered);
}

std::optional<Figure> layer_figure(const Tables& tables) {
  const MetricTable& table = tables.evictions;
  const std::string rows = best_rows(table);
  Variants maps("error-by-layer");
  for (const Wanted& choice :
       table.choices({"phase", "semantics", "budget"}, {{"metric", "output_error"}, {"rows", rows}})) {
    const auto of = shown_keys(table.table(), std::span(choice).subspan(2));
    CellMap map = layer_map(tables.results, table, "policy", choice);
    map.title = fmt::format("Output error of every policy and layer, {}, phase {}", of[2], of[0]);
    map.value_label = fmt::format("output_error on the {}", rows_text(rows));
    maps.add({of[0], of[2], of[1]}, std::move(map));
  }
  return maps.figure(
      {"phase", "budget", "semantics"}, "Which layers lose",
      "Policies downwards, layers across: a dark column is a layer that no policy serves well, a dark row a "
      "policy that fails everywhere. An error is a share of its own layer's output.");
}

/// Map of the keys' storage cost by layer and channel. A dark cell is a channel that the format cannot hold.
std::optional<Figure> key_cost_figure(const Tables& tables) {
  const MetricTable& table = tables.evictions;
  const ResultReader& results = tables.results;
  Variants maps("key-costs");
  const auto layers = std::ssize(results.layers());
  for (const auto& entry : table.entries()) {
    if (table.key(entry, "metric") != "bytes") continue;
    const std::string file =
        fmt::format("{}-{}-{}-{}.npy", file_word(table.key(entry, "policy")), table.key(entry, "semantics"),
                    file_word(table.key(entry, "phase")), entry.kept_text());
    Matrix<double> shares = Matrix<double>::Constant(layers, results.shape().d, kNan);
    bool any = false;
    for (Index at = 0; at < layers; ++at) {
      const auto path = std::filesystem::path(layer_name(results.layers()[at])) / "key_costs" / file;
      if (!results.has(path)) continue;
      const std::vector<double> costs = results.array(path).values;
      any = true;
      shares.row(at).setZero();
      double sum = 0;
      for (std::size_t i = 0; i < costs.size(); ++i) {
        shares(at, static_cast<Index>(i) % shares.cols()) += costs[i];
        sum += costs[i];
      }
      if (sum > 0) shares.row(at) /= sum;
    }
    if (!any) continue;
    CellMap map;
    map.row_label = "layer";
    map.column_label = "key channel";
    for (const Index layer : results.layers()) map.rows.push_back(std::to_string(layer));
    for (Index c = 0; c < shares.cols(); ++c) map.columns.push_back(std::to_string(c));
    map.scale = {false, false, 0, std::max(largest({shares.data(), shares.data() + shares.size()}), 0.01)};
    map.values = std::move(shares);
    map.title = fmt::format("What storing keys costs each channel, {}", table.key(entry, "policy"));
    map.value_label = "share of the squared change of the layer's logits";
    maps.add({table.key(entry, "policy")}, std::move(map));
  }
  return maps.figure({"format"}, "Which key channels a format fails",
                     "Layers down, channels across: what the change of a channel does to the logits, as a "
                     "share of its layer's "
                     "(the channels apart, heads together). A dark cell is a channel whose keys the format "
                     "cannot hold: keep its layer "
                     "in more bits, turn the keys, or let groups lie along tokens.");
}

/// decode/ holds runs of other phases than plain decoding under names with the phase behind "~".
struct DecodeRun {
  std::string option, policy, file;
};

DecodeRun decode_run(const MetricTable& table, const MetricTable::Entry& entry) {
  const std::string &name = table.key(entry, "policy"), &semantics = table.key(entry, "semantics"),
                    &budget = table.key(entry, "budget");
  const std::size_t mark = std::min(name.find('~'), name.size());
  const std::string phase = mark < name.size() ? ", " + name.substr(mark + 1) : "";
  return {fmt::format("{}{}, {}", budget, phase, semantics), name.substr(0, mark),
          fmt::format("{}-{}-{}.npy", file_word(name), semantics, budget)};
}

/// Every entry of the last axis becomes the mean of those up to it.
void running_means(ResultReader::Array& array) {
  const Index steps = array.shape.empty() ? 0 : array.shape.back();
  for (Index first = 0; steps > 0 && first < std::ssize(array.values); first += steps) {
    double sum = 0;
    for (Index step = 0; step < steps; ++step) {
      double& value = array.values[first + step];
      sum += value;
      value = sum / static_cast<double>(step + 1);
    }
  }
}

/// One line a policy over the decoding steps, from the arrays in `folder`.
SeriesFigure decode_series(const Tables& tables, const std::string& folder, bool running) {
  const MetricTable& table = tables.decode;
  SeriesFigure series;
  series.x_label = "decoding step";
  series.second = {"budget", {}};
  series.heads = head_names(tables.results);
  for (const auto& entry : table.entries()) {
    const DecodeRun run = decode_run(table, entry);
    place_in(series.second.options, run.option);
    place_in(series.lines, run.policy);
  }
  for (const auto& entry : table.entries()) {
    if (table.key(entry, "metric") != "mean") continue;
    const DecodeRun run = decode_run(table, entry);
    const auto path = std::filesystem::path(folder) / run.file;
    if (!tables.results.has(path)) continue;
    auto array = tables.results.array(path);
    if (running) running_means(array);
    series.add(place_in(series.second.options, run.option), place_in(series.lines, run.policy), array,
               tables.results);
  }
  return series;
}

std::optional<Figure> decode_figure(const Tables& tables) {
  if (tables.decode.empty()) return std::nullopt;
  SeriesFigure series = decode_series(tables, "decode", true);
  series.name = "decode";
  series.heading = "Output error while decoding";
  series.reading =
      "The cache is cut again at every step (decode:N: every N steps; append-only: never). Each line is the "
      "output error, ||o' - o||^2 / ||o||^2, as its mean over the steps so far; the last point is the mean "
      "of "
      "decode.csv. A line that climbs is a policy that throws away what later steps need. Zeros stand on the "
      "lower edge.";
  series.y_label = "mean output error of the steps so far";
  return figure_of(series);
}

/// Size of the cache over the decoding steps; no plot if it is constant under every policy.
std::optional<Figure> cache_figure(const Tables& tables) {
  const auto changes = [&](const MetricTable::Entry& entry) {
    const std::string& name = tables.decode.key(entry, "policy");
    return name.find('~') != std::string::npos;
  };
  if (std::ranges::none_of(tables.decode.entries(), changes)) return std::nullopt;
  SeriesFigure series = decode_series(tables, "decode_tokens", false);
  if (series.values.empty()) return std::nullopt;
  series.name = "decode-cache";
  series.heading = "Tokens in the cache while decoding";
  series.reading =
      "Each line is the number of tokens that a step attends over, decoded ones included: what the cache "
      "takes "
      "of memory is that times the bytes of a token. With decode:N it grows by N tokens and falls back.";
  series.y_label = "tokens in the cache";
  series.counts = true;
  return figure_of(series);
}

}  // namespace

Section eviction_section(const Tables& tables) {
  return section_of("evictions", "Evictions",
                    {bytes_figure(tables.evictions), budget_figure(tables), layer_figure(tables),
                     key_cost_figure(tables), decode_figure(tables), cache_figure(tables)},
                    "No evictions; kvreplay evict DUMP --out DIR measures them.");
}

namespace {

const std::vector<std::string_view> kKeptSet = {"rows", "phase", "semantics", "policy", "budget"};

/// A choice as lists show it: how much is kept and by whom, then rows, phase and semantics.
std::vector<std::string> picks_of(const MetricTable& table, const Wanted& choice, std::size_t common) {
  std::vector<std::string> picks = shown_keys(table.table(), std::span(choice).subspan(common));
  std::rotate(picks.begin(), picks.begin() + 3, picks.end());
  return picks;
}

std::optional<Figure> method_figure(const MetricTable& table) {
  Variants maps("methods");
  for (const Wanted& choice :
       table.choices({"rows", "phase", "semantics", "budget"}, {{"metric", "output_error"}})) {
    const std::vector<std::string> picks = picks_of(table, choice, 1);
    CellMap map = model_map(table, "method", "policy", choice);
    map.title = fmt::format("Output error of every policy under every method, {}", picks[0]);
    map.column_label = "who chose the tokens";
    map.value_label = fmt::format("||o' - o||^2 / ||o||^2 on the {}", picks[1]);
    mark_lowest(map, table.table(), "method");
    maps.add(picks, std::move(map));
  }
  return maps.figure(
      {"budget", "on the", "phase", "semantics"}, "What kept tokens make up for",
      "Policies choose the tokens, methods change what stands beside their keys: darker is worse, "
      "\"none\" is what is kept as it was, and bold the lowest of a column.");
}

std::optional<Figure> budget_figure(const MetricTable& table, Index l) {
  const std::vector<const FigureFacts*> offered = offered_figures(Table::compensation);
  return model_figure(
      table,
      {.name = "compensation-by-budget",
       .heading = "The same by budget",
       .reading = fmt::format("Each line is a method on the tokens that one policy keeps. {}. On the "
                              "reference rows a fit is as good as it can be; what it is worth shows on rows "
                              "that it has not seen.",
                              directions_text(offered)),
       .figures = offered,
       .item = "method",
       .setting = "budget",
       .keys = {"rows", "phase", "semantics", "policy"},
       .labels = {"metric", "policy", "on the", "phase", "semantics"},
       .first_lists = 1,
       .x = kTokensKept,
       .prompt = l,
       .median_heads = false,
       .title = [](const std::string& figure, const std::vector<std::string>& of) {
         return fmt::format("{} of {} by tokens kept, on the {}", figure, of[3], of[0]);
       }});
}

/// Where an error comes from, one row a method.
std::optional<Figure> split_figure(const MetricTable& table) {
  Variants maps("error-split");
  for (const Wanted& choice : table.choices(kKeptSet, {})) {
    if (table.find(with(choice, "metric", "selection")) == nullptr) continue;
    const std::vector<std::string> picks = picks_of(table, choice, 0);
    CellMap map = model_map(table, "method", "metric", choice,
                            {"output_error", "selection", "mass", "values", "bound"});
    map.title = fmt::format("Terms of the output error of {}, {}", picks[0], picks[1]);
    map.value_label = fmt::format("squared norm over ||o||^2 on the {}", picks[2]);
    maps.add(picks, std::move(map));
  }
  return maps.figure(
      {"policy", "budget", "on the", "phase", "semantics"}, "Where the error comes from",
      "The change of an output is a sum of three vectors: selection, what is kept scaled to the whole "
      "prompt's mass; mass, what the mass that it really has and the biases change of that; values, what "
      "other values change of that. Their squared norms stand here; the vectors may cancel, so that they do "
      "not add up to output_error. bound is the least that any values could reach beside these keys and "
      "biases on these very rows; it is hatched unless rows outnumber tokens.");
}

std::optional<Figure> method_layer_figure(const Tables& tables) {
  const MetricTable& table = tables.compensation;
  Variants maps("compensation-by-layer");
  for (const Wanted& choice : table.choices(kKeptSet, {{"metric", "output_error"}})) {
    const std::vector<std::string> picks = picks_of(table, choice, 1);
    CellMap map = layer_map(tables.results, table, "method", choice);
    map.title = fmt::format("Output error of {} by method and layer, {}", picks[0], picks[1]);
    map.value_label = fmt::format("output_error on the {}", picks[2]);
    maps.add(picks, std::move(map));
  }
  return maps.figure(
      {"policy", "budget", "on the", "phase", "semantics"}, "Which layers a method serves",
      "Methods downwards, layers across. An error is a share of its own layer's output. Single heads are "
      "among the maps of heads.");
}

}  // namespace

Section compensation_section(const Tables& tables) {
  const MetricTable& table = tables.compensation;
  Section section = section_of(
      "compensation", "What kept tokens make up for",
      {method_figure(table), budget_figure(table, tables.results.shape().l), split_figure(table),
       method_layer_figure(tables)},
      "Nothing makes up for what is evicted here; kvreplay evict DUMP --out DIR --compensate none,fit does.");
  for (Finding& one : compensation_findings(table)) section.findings.push_back(std::move(one.text));
  return section;
}

}  // namespace kvreplay::report
