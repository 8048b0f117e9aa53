#include "viewer/work/figure_info.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

namespace kvreplay::viewer {
namespace {

constexpr std::array<std::string_view, 6> kGroupNames{"metrics", "agreement", "evictions",
                                                      "decode",  "budgets",   "channels"};

constexpr std::optional<bool> kEither = std::nullopt;
constexpr TableFigure kTableFigures[] = {
    {"output_error", "relative error", true, ScaleKind::log},
    {"layer_output_error", "relative error", true, ScaleKind::log},
    {"eviction_loss", "importance", true, ScaleKind::log},
    {"optimality_gap", "importance", true, ScaleKind::symlog},
    {"oracle_recall", "share of tokens", false, ScaleKind::linear},
    {"excess_over_greedy_exact", "relative error", true, ScaleKind::symlog},
    {"excess_over_exchange", "relative error", true, ScaleKind::symlog},
    {"bytes", "bytes", kEither, ScaleKind::linear},
    // decoding
    {"mean", "relative error", true, ScaleKind::log},
    {"max", "relative error", true, ScaleKind::log},
    {"last", "relative error", true, ScaleKind::log},
    // budgets
    {"budget", "tokens", kEither, ScaleKind::linear},
    {"loss", "importance", true, ScaleKind::log},
    // channels
    {"off_diagonal_share", "share", kEither, ScaleKind::linear},
    {"rope_pair_share", "share", kEither, ScaleKind::linear},
    {"reconstruction_error", "squared logits", true, ScaleKind::log},
    {"relative_reconstruction_error", "relative error", true, ScaleKind::log},
    {"reconstruction_gain", "share of think's error", false, ScaleKind::linear},
    {"lower_bound", "squared logits", kEither, ScaleKind::log},
    {"proven", "", false, ScaleKind::linear},
    {"output_gain", "share of think's error", false, ScaleKind::linear},
    {"layer_output_gain", "share of think's error", false, ScaleKind::linear},
};

FigureInfo metric_info(TokenMetric metric) {
  FigureInfo info;
  info.name = name_of(metric);
  info.group = FigureGroup::metrics;
  info.path = {info.name};
  info.title = info.name + ", summed over tokens";
  info.unit = name_of(kTokenMetrics[metric].unit);
  if (kTokenMetrics[metric].kind != MetricKind::score) info.larger_is_worse = true;
  info.scale = kTokenMetrics[metric].linear ? ScaleKind::linear : ScaleKind::log;
  return info;
}

}  // namespace

std::string_view name_of(FigureGroup group) { return kGroupNames[static_cast<std::size_t>(group)]; }

const TableFigure* table_figure_named(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kTableFigures), std::end(kTableFigures),
                                         [&](const TableFigure& figure) { return figure.name == name; });
  return found == std::end(kTableFigures) ? nullptr : found;
}

FigureInfo figure_info(const HeadFigure& figure, Index reserve) {
  if (!figure.reference) return metric_info(figure.metric);
  const std::string score(name_of(figure.metric)), reference(name_of(*figure.reference)),
      what(name_of(figure.figure));
  FigureInfo info;
  info.name = name_of(figure);
  info.group = FigureGroup::agreement;
  info.path = {reference, score, what};
  info.title = fmt::format("{} of {} against {}", what, score, reference);
  if (reserve > 0) {
    info.path.back() += fmt::format(" without the last {}", reserve);
    info.title += fmt::format(", without the last {} tokens", reserve);
  }
  if (figure.figure == Figure::rel_l1)
    info.unit = "relative error";
  else if (figure.figure == Figure::spearman)
    info.unit = "rank correlation";
  else
    info.unit = figure.figure < Figure::mass_40 ? "share of tokens" : "share of the error";
  info.larger_is_worse = figure.figure == Figure::rel_l1;
  info.scale = figure.figure == Figure::rel_l1 ? ScaleKind::log : ScaleKind::linear;
  return info;
}

}  // namespace kvreplay::viewer
