#include "analysis/report/window_figure.hpp"

#include "analysis/report/line_plot.hpp"
#include "sim/tokens/token_facts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay::report {
namespace {

/// Attention, what approximates an error, and the errors on the window that it stands for.
constexpr TokenMetric kDrawn[] = {TokenMetric::attn,        TokenMetric::value, TokenMetric::key,
                                  TokenMetric::joint,       TokenMetric::caote, TokenMetric::exact_joint,
                                  TokenMetric::exact_remove};
constexpr const char* kRecalls[] = {"recall@40", "recall@1%", "recall@5%", "recall@10%", "recall@20%"};

/// A line for each score and reserve: the mean over the heads on every window.
LinePlot plot_of(const FigureTable& agreement, const std::string& reference, const char* recall,
                 const std::vector<std::pair<double, std::string>>& windows) {
  LinePlot plot;
  for (const auto& [rows, name] : windows) plot.at.push_back(rows);
  std::vector<std::string> scores;
  for (const TokenMetric score : kDrawn)
    if (name_of(score) != reference) scores.emplace_back(name_of(score));
  const std::vector<LineStyle> styles = styles_by_name(scores);
  const std::vector<std::string> reserves = agreement.distinct("reserve");
  std::vector<double> all;
  for (std::size_t s = 0; s < scores.size(); ++s)
    for (std::size_t r = 0; r < reserves.size(); ++r) {
      const std::string& reserve = reserves[r];
      LinePlot::Line line{reserve == "0" ? scores[s] : fmt::format("{}, {} reserved", scores[s], reserve),
                          styles[s],
                          {},
                          fmt::format("{} reserve {}", scores[s], reserve)};
      line.style.dash = static_cast<int>(r);
      for (const auto& [rows, window] : windows) {
        const auto* const entry = agreement.find({{"score", scores[s]},
                                                  {"reference", reference},
                                                  {"window", window},
                                                  {"reserve", reserve},
                                                  {"metric", recall}});
        line.values.push_back(entry == nullptr ? kNan : mean(entry->heads));
      }
      if (std::isnan(largest(line.values))) continue;
      all.insert(all.end(), line.values.begin(), line.values.end());
      plot.lines.push_back(std::move(line));
    }
  plot.x = log_axis("window: rows that score", plot.at);
  plot.x.high = plot.at.back();
  plot.y = linear_axis(fmt::format("{} of {}, mean of the heads", recall, reference), all, true);
  plot.title = fmt::format("{} of {} over the window", recall, reference);
  return plot;
}

}  // namespace

std::optional<Figure> window_figure(const FigureTable& agreement) {
  const auto windows = by_number(agreement.distinct("window"));
  if (windows.size() < 2) return std::nullopt;
  // What the decoding steps miss, where there are any; that of the next row first, as in OBCache fig. 2.
  std::vector<std::string> references = agreement.distinct("reference", {{"rows", "future"}});
  if (references.empty()) references = agreement.distinct("reference");
  Variants variants("recall-by-window");
  for (const std::string& reference : references)
    for (const char* const recall : kRecalls) {
      LinePlot plot = plot_of(agreement, reference, recall, windows);
      if (plot.lines.empty()) continue;
      plot.id = variants.next_id();
      variants.add({recall, reference}, plot);
    }
  if (variants.empty()) return std::nullopt;
  Figure figure = variants.figure({"figure", "costliest by"});
  figure.heading = "Recall of the costliest tokens, by window";
  figure.reading =
      "To the right the number of the prompt's last rows that score, upwards the share of the costliest "
      "tokens that a score finds. exact_joint and exact_remove are the exact errors on the window: a score "
      "beside them loses nothing by being an approximation (OBCache fig. 2a). Dashed: with the last tokens "
      "reserved inside the tokens found, whatever the score says of them (fig. 2b).";
  return figure;
}

}  // namespace kvreplay::report
