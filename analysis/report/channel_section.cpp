#include "analysis/drawing/color_scale.hpp"
#include "analysis/drawing/picture.hpp"
#include "analysis/report/figure.hpp"
#include "analysis/report/picked_lines.hpp"
#include "analysis/report/plot_frame.hpp"
#include "analysis/report/plots.hpp"
#include "analysis/report/sections.hpp"
#include "analysis/report/text.hpp"
#include "analysis/results/csv.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/map_name.hpp"
#include "analysis/results/metric_table.hpp"
#include "analysis/results/result_folder.hpp"
#include "analysis/results/result_reader.hpp"
#include "analysis/results/token_figures.hpp"
#include "data/dtype.hpp"
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

namespace fs = std::filesystem;

/// Entries of all heads together; a page carries 1.4 bytes of each, as half of a symmetric matrix is enough.
constexpr double kMostEntries = 5e6;
constexpr const char* kFirstSelection = "iap-0.5";
constexpr double kLeft = 62, kTop = 30, kSide = 400, kStrip = 8;

struct Head {
  std::string name;
  Matrix<double> values;
  double limit = 0;  ///< the largest |entry| off the diagonal: where colours end
  std::vector<std::string>
      pruned;  ///< of each selection, "0110..."; empty where it has a set for each query head
};

/// Selections with arrays; the one to show comes first.
std::vector<std::string> selections_of(const Tables& tables) {
  std::vector<std::string> names;
  const fs::path folder = fs::path(layer_name(tables.results.layers().front())) / "channels";
  for (const std::string& method : tables.channels.distinct("method"))
    for (const std::string& ratio : tables.channels.distinct("ratio"))
      if (const std::string name = fmt::format("{}-{}", file_word(method), ratio);
          !method.empty() && !ratio.empty() && tables.results.has(folder / (name + ".npy")))
        names.push_back(name);
  const auto first = std::ranges::find(names, kFirstSelection);
  if (first != names.end()) std::rotate(names.begin(), first, first + 1);
  return names;
}

void read_layer(const ResultReader& results, Index layer, const std::vector<std::string>& selections,
                std::vector<Head>& heads) {
  const fs::path folder = fs::path(layer_name(layer)) / "channels";
  const Index n_kv = results.shape().n_kv, d = results.shape().d;
  const auto matrices = results.array(folder / "interaction.npy");
  const Index count = matrices.shape.empty() ? 0 : matrices.shape[0];
  if (matrices.shape != std::vector<Index>{count, d, d} || (count != n_kv && count != results.shape().n_q))
    throw InputError((results.folder() / folder / "interaction.npy").string(),
                     fmt::format("shape [{}, {}, {}]", n_kv, d, d), "shape " + shape_text(matrices.shape));
  const std::size_t first = heads.size();
  for (Index head = 0; head < count; ++head) {
    Head made;
    made.name = head_name(results, layer, count, head);
    made.values = Eigen::Map<const Matrix<double>>(matrices.values.data() + head * d * d, d, d);
    for (Index r = 0; r < d; ++r)
      for (Index c = 0; c < d; ++c)
        if (r != c && std::isfinite(made.values(r, c)))
          made.limit = std::max(made.limit, std::abs(made.values(r, c)));
    heads.push_back(std::move(made));
  }
  for (const std::string& selection : selections) {
    const auto pruned = results.array(folder / (selection + ".npy"));
    for (Index head = 0; head < count; ++head) {
      std::string bits;
      if (pruned.shape == std::vector<Index>{count, d})
        for (Index c = 0; c < d; ++c) bits += pruned.values[head * d + c] != 0 ? '1' : '0';
      heads[first + static_cast<std::size_t>(head)].pruned.push_back(std::move(bits));
    }
  }
}

/// Rows of the upper triangle over the limit, as float16.
std::string packed(const Head& head) {
  std::vector<std::uint8_t> bytes;
  const double unit = head.limit > 0 ? head.limit : 1;
  for (Index r = 0; r < head.values.rows(); ++r)
    for (Index c = r; c < head.values.cols(); ++c) {
      const auto share = static_cast<float>(std::clamp(head.values(r, c) / unit, -60000.0, 60000.0));
      const std::uint16_t bits = float_to_half(share);
      bytes.push_back(static_cast<std::uint8_t>(bits & 0xFF));
      bytes.push_back(static_cast<std::uint8_t>(bits >> 8));
    }
  return base64(bytes);
}

std::string image_of(const Head& head) {
  const auto bytes = heatmap_png(head.values, head.limit);
  return "data:image/png;base64," +
         base64({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
}

/// Bars beside the pruned channels, above the map and to the right of it.
std::string strip_path(const std::string& bits) {
  std::string path;
  const double cell = kSide / static_cast<double>(std::max<std::size_t>(bits.size(), 1));
  for (std::size_t c = 0; c < bits.size(); ++c)
    if (bits[c] == '1')
      path += fmt::format("M{} {}h{}v{}h-{}zM{} {}h{}v{}h-{}z", px(kLeft + cell * static_cast<double>(c)),
                          px(kTop - kStrip - 2), px(cell), px(kStrip), px(cell), px(kLeft + kSide + 2),
                          px(kTop + cell * static_cast<double>(c)), px(kStrip), px(cell), px(kStrip));
  return path;
}

std::string svg_of(const Head& head, const std::string& selection) {
  const Index d = head.values.rows();
  Svg svg("interaction", kLeft + kSide + 40, kTop + kSide + 84,
          "Interaction of the key channels, " + head.name);
  svg.raw(
      fmt::format("<image x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" preserveAspectRatio=\"none\" "
                  "style=\"image-rendering:pixelated\" href=\"{}\"/>",
                  px(kLeft), px(kTop), px(kSide), px(kSide), image_of(head)));
  svg.rect(kLeft, kTop, kSide, kSide, "class=\"frame\"");
  const double cell = kSide / static_cast<double>(d);
  for (Index c = 0; c < d; c += std::max<Index>(1, (d + 7) / 8)) {
    const double middle = cell * (static_cast<double>(c) + 0.5);
    svg.text(kLeft + middle, kTop + kSide + 16, "middle", std::to_string(c));
    svg.text(kLeft - 6, kTop + middle + 4, "end", std::to_string(c));
  }
  svg.text(kLeft + kSide / 2, kTop + kSide + 34, "middle", "channel d", "label");
  svg.text(13, kTop + kSide / 2, "middle", "channel c", "label",
           fmt::format("transform=\"rotate(-90 13 {})\"", px(kTop + kSide / 2)));
  svg.raw(fmt::format("<path class=\"strip\" data-strip=\"\" d=\"{}\"/>",
                      head.pruned.empty() ? "" : strip_path(head.pruned.front())));
  if (!selection.empty())
    svg.text(kLeft + kSide, 12, "end", fmt::format("green: pruned by {}", selection), "label",
             "data-strip-name=\"\"");
  const double y = kTop + kSide + 50;
  for (int i = 0; i < 40; ++i)
    svg.rect(kLeft + 4.5 * i, y, 4.9, 9,
             fmt::format("fill=\"{}\"", hex(diverging_color((i + 0.5) / 20 - 1))));
  svg.text(kLeft, y + 22, "start", shown(-head.limit), "", "data-low=\"\"");
  svg.text(kLeft + 90, y + 22, "middle", "0");
  svg.text(kLeft + 180, y + 22, "end", shown(head.limit), "", "data-high=\"\"");
  svg.rect(kLeft, kTop, kSide, kSide, "class=\"probe\"");
  return svg.finish();
}

std::string csv_of(const Head& head) {
  CsvTable csv("c,d,H");
  for (Index r = 0; r < head.values.rows(); ++r)
    for (Index c = 0; c < head.values.cols(); ++c) csv.row(r, c, head.values(r, c));
  return csv.take();
}

std::string json_of(const std::vector<Head>& heads, Index d) {
  const std::string all = json_list(heads, [](const Head& head) {
    return fmt::format(R"({{"limit":{},"pruned":{},"upper":"{}"}})", json_number(head.limit),
                       json_list(head.pruned, json_string), packed(head));
  });
  return fmt::format(R"({{"d":{},"frame":{{"left":{},"top":{},"side":{},"strip":{}}},"heads":{}}})", d, kLeft,
                     kTop, kSide, kStrip, all);
}

/// The interaction matrices of every head as heatmaps with what each selection prunes; nothing where the
/// folder has none.
std::optional<Figure> interaction_figure(const Tables& tables) {
  const ResultReader& results = tables.results;
  if (results.layers().empty()) return std::nullopt;
  const auto has = [&](Index layer) {
    return results.has(fs::path(layer_name(layer)) / "channels" / "interaction.npy");
  };
  if (!has(results.layers().front())) return std::nullopt;
  const auto layers = std::ssize(results.layers());
  const double of_layer = static_cast<double>(results.shape().n_kv) * static_cast<double>(results.shape().d) *
                          static_cast<double>(results.shape().d);
  const Index most = std::clamp<Index>(static_cast<Index>(kMostEntries / of_layer), 1, layers);
  const std::vector<std::string> selections = selections_of(tables);
  std::vector<Head> heads;
  for (Index i = 0; i < most; ++i) {
    const Index layer = results.layers()[i * layers / most];
    if (has(layer)) read_layer(results, layer, selections, heads);
  }
  std::vector<std::string> names;
  for (const Head& head : heads) names.push_back(head.name);

  Figure figure;
  figure.name = "interaction";
  figure.heading = "How key channels interact";
  figure.reading =
      "H of one head: pruning a set of channels changes the logits by the sum of H over that set, so that "
      "the diagonal is what a channel costs alone, red off it what two cost together on top, blue what they "
      "cancel. Colours end at the largest entry off the diagonal. Green bars: the channels that the "
      "selection prunes.";
  if (most < layers)
    figure.note = fmt::format("{} of {} layers are in this page; layer_*/channels/ holds all.", most, layers);
  add_drawing(figure, {{"head", names}, {"pruned by", selections}}, "heat",
              svg_of(heads.front(), selections.empty() ? "" : selections.front()),
              json_of(heads, results.shape().d), csv_of(heads.front()));
  return figure;
}

constexpr Index kMostQueryValues = 400'000;
constexpr std::array kRows = {"window", "future"};
constexpr std::array kShown = {"window", "decoding"};

std::filesystem::path file_of(Index layer, const char* rows, const char* what) {
  return std::filesystem::path(layer_name(layer)) / "channels" / fmt::format("query_{}_{}.npy", rows, what);
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
  const Index every = all <= kMostQueryValues ? 1 : group;
  if (every > 1)
    drawn.note = fmt::format("The first query head of each KV head; layer_*/channels/ has all {}.",
                             layers * shape.n_q);
  drawn.picks = {{"query head", {}}};
  for (const Index layer : results.layers()) {
    std::array<ResultReader::Array, kRows.size()> means, spreads;
    for (std::size_t r = 0; r < kRows.size(); ++r) {
      means[r] = results.array(file_of(layer, kRows[r], "mean"), {shape.n_q, shape.d});
      spreads[r] = results.array(file_of(layer, kRows[r], "std"), {shape.n_q, shape.d});
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

/// Metrics that the schema offers, gains first: they compare methods at a glance.
std::vector<const FigureFacts*> offered_by_gain() {
  std::vector<const FigureFacts*> figures = offered_figures(Table::channels);
  std::stable_partition(figures.begin(), figures.end(),
                        [](const FigureFacts* facts) { return facts->scale == FigureScale::gain; });
  return figures;
}

std::optional<Figure> ratio_figure(const MetricTable& table) {
  return model_figure(
      table,
      {.name = "error-by-ratio",
       .heading = "Error by the share of channels pruned",
       .reading =
           "A gain is the share of ThinK's error that a selection saves at the same ratio: above 0 it is "
           "better than ThinK, 1 is no error at all. Of errors lower is better. What wins on the logits of "
           "the window may lose in the outputs of the decoding steps.",
       .figures = offered_by_gain(),
       .item = "method",
       .setting = "ratio",
       .keys = {"rows"},
       .labels = {"metric", "on the"},
       .x = "share of channels pruned",
       .window_first = true,
       .title = [](const std::string& figure, const std::vector<std::string>& of) {
         return fmt::format("{} by the share of channels pruned, on the {}", figure, of[0]);
       }});
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
