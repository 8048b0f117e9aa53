#include "analysis/report/figure.hpp"
#include "analysis/report/layer_lines.hpp"
#include "analysis/report/line_plot.hpp"
#include "analysis/report/picked_lines.hpp"
#include "analysis/report/sections.hpp"
#include "analysis/results/figure_table.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/result_folder.hpp"
#include "analysis/results/result_reader.hpp"
#include "analysis/results/token_figures.hpp"
#include "data/error.hpp"
#include "data/npy_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <optional>

namespace kvreplay::report {
namespace {

constexpr Index kMostValues = 400'000;
constexpr std::array kRows = {"window", "future"};
constexpr std::array kShown = {"window", "decoding"};

std::filesystem::path file_of(Index layer, const char* rows, const char* what) {
  return std::filesystem::path(layer_name(layer)) / "channels" / fmt::format("query_{}_{}.npy", rows, what);
}

/// [n_q, d]
ResultReader::Array channels_of(const ResultReader& results, const std::filesystem::path& name) {
  ResultReader::Array array = results.array(name);
  const Index n_q = results.shape().n_q, d = results.shape().d;
  if (array.shape != std::vector<Index>{n_q, d})
    throw InputError((results.folder() / name).string(), fmt::format("shape [{}, {}]", n_q, d),
                     "shape " + shape_text(array.shape));
  return array;
}

/// Mean and spread of every channel of the queries, over the window and over the decoding steps (IAP, fig.
/// 2). Nothing where the folder does not have both.
std::optional<Figure> query_figure(const ResultReader& results) {
  for (const Index layer : results.layers())
    for (const char* const rows : kRows)
      if (!results.has(file_of(layer, rows, "mean"))) return std::nullopt;
  const DumpShape& shape = results.shape();
  if (results.layers().empty() || shape.d < 2) return std::nullopt;
  PickedLines drawn;
  drawn.name = "query-channels";
  drawn.heading = "Queries of the window and of the decoding steps";
  drawn.reading =
      "Every channel's mean over the queries, and one standard deviation to both sides of it, dotted: over "
      "the window that channels are chosen by, and over the decoding steps that they are needed for. Where "
      "the two part, a selection looks at queries that do not come again.";
  for (Index channel = 0; channel < shape.d; ++channel) drawn.at.push_back(static_cast<double>(channel));
  drawn.x = {"channel of the query", 0, drawn.at.back(), false};
  for (std::size_t r = 0; r < kRows.size(); ++r) {
    const auto color = static_cast<int>(r);
    drawn.lines.push_back({fmt::format("{}, mean", kShown[r]), {color, 0, 0}, {}});
    drawn.lines.push_back({fmt::format("{}, mean + spread", kShown[r]), {color, 2, 0, true}, {}});
    drawn.lines.push_back({fmt::format("{}, mean - spread", kShown[r]), {color, 2, 0, true}, {}});
  }
  const auto layers = std::ssize(results.layers());
  const Index all = layers * shape.n_q * shape.d * std::ssize(drawn.lines), group = shape.n_q / shape.n_kv;
  const Index every = all <= kMostValues ? 1 : group;
  if (every > 1)
    drawn.note = fmt::format("The first query head of each KV head; layer_*/channels/ has all {}.",
                             layers * shape.n_q);
  drawn.picks = {{"query head", {}}};
  for (const Index layer : results.layers()) {
    std::array<ResultReader::Array, kRows.size()> means, spreads;
    for (std::size_t r = 0; r < kRows.size(); ++r) {
      means[r] = channels_of(results, file_of(layer, kRows[r], "mean"));
      spreads[r] = channels_of(results, file_of(layer, kRows[r], "std"));
    }
    for (Index head = 0; head < shape.n_q; head += every) {
      PickedLines::Choice choice;
      std::vector<double> drawn_values;
      for (std::size_t r = 0; r < kRows.size(); ++r)
        for (const double sign : {0.0, 1.0, -1.0}) {
          auto& line = choice.values.emplace_back();
          for (Index channel = 0; channel < shape.d; ++channel) {
            const auto at = static_cast<std::size_t>(head * shape.d + channel);
            line.push_back(means[r].values[at] + (sign == 0 ? 0 : sign * spreads[r].values[at]));
          }
          drawn_values.insert(drawn_values.end(), line.begin(), line.end());
        }
      choice.y = linear_axis("value of the channel", drawn_values, true);
      drawn.choices[{drawn.picks.front().options.size()}] = std::move(choice);
      drawn.picks.front().options.push_back(head_name(results, layer, shape.n_q, head));
    }
  }
  return figure_of(std::move(drawn));
}

/// What the schema offers, gains first: they compare methods at a glance.
std::vector<const FigureFacts*> offered_by_gain() {
  std::vector<const FigureFacts*> figures = offered_figures(Table::channels);
  std::stable_partition(figures.begin(), figures.end(),
                        [](const FigureFacts* facts) { return facts->scale == FigureScale::gain; });
  return figures;
}

std::optional<Figure> ratio_figure(const FigureTable& table) {
  Variants variants("error-by-ratio");
  for (const FigureFacts* const facts : offered_by_gain()) {
    const std::string metric(facts->name);
    for (const std::string& rows : table.distinct("rows", {{"metric", metric}})) {
      const Wanted common = {{"metric", metric}, {"rows", rows}};
      for (const bool of_median_head : {false, true}) {
        if (of_median_head && !is_error_of_heads(*facts)) continue;
        LinePlot plot = model_plot(table, common, *facts, "method", "ratio",
                                   by_number(table.distinct("ratio", common)), of_median_head);
        if (plot.at.empty() || plot.lines.empty()) continue;
        const std::string shown = metric + (of_median_head ? kMedianHead : "");
        plot.x = linear_axis("share of channels pruned", plot.at, false);
        plot.id = variants.next_id();
        plot.title = fmt::format("{} by the share of channels pruned, on the {}", shown, rows_text(rows));
        variants.add({shown, rows_text(rows)}, plot);
      }
    }
  }
  if (variants.empty()) return std::nullopt;
  Figure figure = variants.figure({"metric", "on the"});
  figure.heading = "Error by the share of channels pruned";
  figure.shows = offered_by_gain();
  figure.reading =
      "A gain is the share of ThinK's error that a selection saves at the same ratio: above 0 it is better "
      "than ThinK, 1 is no error at all. Of errors lower is better. What wins on the logits of the window "
      "may lose in the outputs of the decoding steps.";
  return figure;
}

LayerLines layers_of_channels() {
  return {
      Table::channels,
      "selection-by-layer",
      "Gain and error by layer",
      "What each selection saves of ThinK's error, and what it costs, layer by layer (IAP, fig. 3): above "
      "0 a layer gains.",
      offered_by_gain(),
      "method",
      {{"rows", "on the"}, {"ratio", "share pruned"}, {"semantics", "semantics"}, {"recent", "recent"}},
      {"rows", "window"}};
}

}  // namespace

std::optional<Figure> channel_layers_figure(const OverDumpsReader& results) {
  return layer_lines(results, layers_of_channels());
}

Section channel_section(const Tables& tables) {
  return section_of(
      "channels", "Key channels",
      {ratio_figure(tables.channels), layer_lines(tables, tables.channels, layers_of_channels()),
       query_figure(tables.results), interaction_figure(tables)},
      "No channel interactions; kvreplay channels DUMP --out DIR computes them.");
}

}  // namespace kvreplay::report
