#include "analysis/report/query_figure.hpp"

#include "analysis/report/figure_table.hpp"
#include "analysis/report/picked_lines.hpp"
#include "analysis/report/token_figures.hpp"
#include "analysis/results/result_folder.hpp"
#include "data/error.hpp"
#include "data/npy/npy_header.hpp"

#include <fmt/format.h>

#include <array>

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

}  // namespace

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

}  // namespace kvreplay::report
