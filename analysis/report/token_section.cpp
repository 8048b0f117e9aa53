#include "analysis/findings/findings.hpp"
#include "analysis/report/figure.hpp"
#include "analysis/report/picked_lines.hpp"
#include "analysis/report/plots.hpp"
#include "analysis/report/sections.hpp"
#include "analysis/report/text.hpp"
#include "analysis/results/csv.hpp"
#include "analysis/results/metric_table.hpp"
#include "analysis/results/token_figures.hpp"
#include "sim/tokens/token_facts.hpp"

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <set>

namespace kvreplay::report {
namespace {

/// Attention, what approximates an error, and the errors on the window that it stands for.
constexpr TokenMetric kDrawn[] = {TokenMetric::attn,        TokenMetric::value, TokenMetric::key,
                                  TokenMetric::joint,       TokenMetric::caote, TokenMetric::exact_joint,
                                  TokenMetric::exact_remove};
constexpr const char* kRecalls[] = {"recall@40", "recall@1%", "recall@5%", "recall@10%", "recall@20%"};

/// A line for each score and reserve: the mean over the heads on every window.
LinePlot plot_of(const MetricTable& agreement, const std::string& reference, const char* recall,
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

/// Recall of the costliest tokens by scores, over the windows, with and without reserved tokens; empty for
/// results on one window.
std::optional<Figure> window_figure(const MetricTable& agreement) {
  const auto windows = by_number(agreement.distinct("window"));
  if (windows.size() < 2) return std::nullopt;
  // References on the decoding steps, if there are any; the next row's first, as in OBCache fig. 2.
  std::vector<std::string> references = agreement.distinct("reference", {{"rows", "future"}});
  if (references.empty()) references = agreement.distinct("reference");
  Variants variants("recall-by-window");
  for (const std::string& reference : references)
    for (const char* const recall : kRecalls) {
      LinePlot plot = plot_of(agreement, reference, recall, windows);
      if (plot.lines.empty()) continue;
      variants.add({recall, reference}, std::move(plot));
    }
  return variants.figure(
      {"figure", "costliest by"}, "Recall of the costliest tokens, by window",
      "To the right the number of the prompt's last rows that score, upwards the share of the costliest "
      "tokens that a score finds. exact_joint and exact_remove are the exact errors on the window: a score "
      "beside them loses nothing by being an approximation (OBCache fig. 2a). Dashed: with the last tokens "
      "reserved inside the tokens found, whatever the score says of them (fig. 2b).");
}

std::string recall_csv(const TokenFigures& figures) {
  CsvTable csv("head,reference,score,k,recall");
  for (std::size_t r = 0; r < figures.references.size(); ++r)
    for (std::size_t h = 0; h < figures.heads.size(); ++h)
      for (std::size_t s = 0; s < figures.scores.size(); ++s)
        for (std::size_t k = 0; k < figures.k.size(); ++k)
          if (const double value = figures.recall[r][h][s][k]; !std::isnan(value))
            csv.row(figures.heads[h], figures.references[r], figures.scores[s],
                    static_cast<Index>(figures.k[k]), value);
  return csv.take();
}

Figure recall_figure(const TokenFigures& figures) {
  PickedLines drawn;
  drawn.name = "recall";
  drawn.heading = "Recall of the costliest tokens, at every budget";
  drawn.reading =
      "For every k: the share of the k tokens that cost most which a score finds with its k largest. 1 "
      "everywhere is perfect; a score that drops at small k misses the few tokens that matter most.";
  drawn.at = figures.k;
  drawn.x = log_axis("k, tokens kept", figures.k);
  drawn.x.high = figures.k.back();
  const std::vector<LineStyle> styles = styles_by_name(figures.scores);
  for (std::size_t s = 0; s < figures.scores.size(); ++s)
    drawn.lines.push_back({figures.scores[s], styles[s], {}});
  Pick heads{"head", {kMedian}};
  heads.options.insert(heads.options.end(), figures.heads.begin(), figures.heads.end());
  drawn.picks = {heads, {"costliest by", figures.references}};
  const Axis y{"recall@k", 0, 1, false};
  for (std::size_t r = 0; r < figures.references.size(); ++r) {
    drawn.choices[{0, r}] = {medians_of(figures.recall[r]), y};
    for (std::size_t h = 0; h < figures.heads.size(); ++h)
      drawn.choices[{h + 1, r}] = {figures.recall[r][h], y};
  }
  drawn.csv = recall_csv(figures);
  return figure_of(std::move(drawn));
}

/// Logarithmic where nothing is negative.
Axis axis_of(const std::string& metric, const std::vector<double>& values) {
  if (smallest(values) >= 0 && largest(values) > 0) return log_axis(metric, values, 9);
  return linear_axis(metric, values, false);
}

std::string points_json(const TokenFigures& figures) {
  const auto by_metric = [](const auto& of_head, const auto& text_of) {
    std::string json;
    for (const auto& [metric, points] : of_head)
      json += fmt::format("{}{}:{}", json.empty() ? "" : ",", json_string(metric), text_of(metric, points));
    return fmt::format("{{{}}}", json);
  };
  const auto text = [](const std::vector<double>& points) {
    return fmt::format("\"{}\"", base64_floats(points));
  };
  return fmt::format("\"tokens\":{},\"values\":{},\"axes\":{}", json_list(figures.positions, text),
                     json_list(figures.values,
                               [&](const auto& of_head) {
                                 return by_metric(
                                     of_head, [&](const auto&, const auto& points) { return text(points); });
                               }),
                     json_list(figures.values, [&](const auto& of_head) {
                       return by_metric(of_head, [](const auto& metric, const auto& points) {
                         return axis_json(axis_of(metric, points));
                       });
                     }));
}

/// Spearman of whole heads, where the table has them.
std::string rho_json(const Tables& tables, const TokenFigures& figures) {
  std::string json;
  const auto& table = tables.agreement;
  if (figures.heads.size() !=
      tables.results.layers().size() * static_cast<std::size_t>(tables.results.shape().n_kv))
    return json;  // arrays of query heads
  const Wanted spearman = with(table.first_of_swept(), "metric", "spearman");
  for (const auto& entry : table.entries())
    if (table.matches(entry, spearman))
      json += fmt::format(
          "{}{}:{}", json.empty() ? "" : ",",
          json_string(fmt::format("{}~{}", table.key(entry, "score"), table.key(entry, "reference"))),
          json_numbers(entry.heads));
  return json;
}

/// The text of every token that is drawn of some head, by its position.
std::string texts_json(const ResultReader& results, const TokenFigures& figures) {
  std::set<Index> drawn;
  for (const std::vector<double>& tokens : figures.positions)
    for (const double token : tokens) drawn.insert(static_cast<Index>(token));
  const std::optional<TokenLabels> labels = token_labels_of(results);
  std::string json;
  for (const Index token : drawn)
    if (const std::string text = quoted_token(labels, token); !text.empty())
      json += fmt::format("{}\"{}\":{}", json.empty() ? "" : ",", token, json_string(text));
  return json;
}

Figure scatter_figure(const Tables& tables, const TokenFigures& figures) {
  Figure figure;
  figure.name = "scatter";
  figure.heading = "Score against exact error, token by token";
  figure.reading =
      "Every point is a token of one head: to the right what the score says, upwards what it really costs. A "
      "rising line is a score that ranks as the exact error does; points high on the left are costly tokens "
      "that the score would throw away. Zeros and what lies more than nine powers of ten below the largest "
      "stand on the edge.";
  std::vector<std::string> scores = figures.scores;
  const std::string reference = figures.references.front();
  ScatterPlot plot;
  plot.id = "scatter";
  const std::string score = scores.front();
  plot.title = fmt::format("{} against {} in {}", score, reference, figures.heads.front());
  plot.x = axis_of(score, figures.values.front().at(score));
  plot.y = axis_of(reference, figures.values.front().at(reference));
  plot.tokens = figures.positions.front();
  plot.across = figures.values.front().at(score);
  plot.up = figures.values.front().at(reference);
  if (const auto* const rho =
          tables.agreement.find({{"score", score}, {"reference", reference}, {"metric", "spearman"}});
      rho != nullptr && figures.heads.size() == rho->heads.size() && !std::isnan(rho->heads.front()))
    plot.corner = fmt::format("rho {:.4g}", rho->heads.front());
  const auto shown_points = std::ssize(plot.tokens);
  if (shown_points < figures.tokens)
    figure.note = fmt::format(
        "About {} of each head's {} tokens are drawn: those that cost most by {} and evenly spaced ones of "
        "the others; layer_*/tokens/ holds all.",
        shown_points, figures.tokens, reference);
  const std::string json = fmt::format(
      "{{\"frame\":{},\"scores\":{},\"references\":{},\"rho\":{{{}}},\"texts\":{{{}}},{}}}",
      frame_json(scatter_frame()), json_list(scores, json_string), json_list(figures.references, json_string),
      rho_json(tables, figures), texts_json(tables.results, figures), points_json(figures));
  add_drawing(figure, {{"head", figures.heads}, {"score", scores}, {"exact error", figures.references}},
              "scatter", svg_of(plot), json, csv_of(plot));
  return figure;
}

}  // namespace

Section token_section(const Tables& tables) {
  Section section{"tokens", "Token by token", "", {}, ""};
  const TokenFigures figures = token_figures(tables.results);
  if (figures.heads.empty() || figures.scores.empty()) {
    section.missing =
        "No arrays of scores and exact errors; kvreplay tokens DUMP --out DIR writes them (it needs at least "
        "one score, and one exact error or oracle, among --metrics).";
    return section;
  }
  section.figures.push_back(recall_figure(figures));
  if (auto by_window = window_figure(tables.agreement)) section.figures.push_back(std::move(*by_window));
  section.figures.push_back(scatter_figure(tables, figures));
  return section;
}

}  // namespace kvreplay::report
