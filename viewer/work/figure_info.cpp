#include "viewer/work/figure_info.hpp"

#include "analysis/options/option.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay::viewer {

std::string about(const FigureInfo& figure) {
  return fmt::format("{}{}", figure.title, meaning_of(figure.facts, "\n", "\n"));
}

ScaleKind scale_kind(FigureScale scale) {
  switch (scale) {
    case FigureScale::log:
      return ScaleKind::log;
    case FigureScale::signed_log:
      return ScaleKind::symlog;
    case FigureScale::linear:
    case FigureScale::share:
    case FigureScale::correlation:
    case FigureScale::gain:
      break;
  }
  return ScaleKind::linear;
}

float badness(Better better, float place) {
  const float within = std::clamp(place, 0.0F, 1.0F);
  return better == Better::larger ? 1 - within : within;
}

FigureInfo figure_info(const HeadFigure& figure, Index reserve, std::optional<Index> window) {
  if (!figure.reference) {
    const FigureFacts& facts = *figure_named(Table::heads, name_of(figure.metric));
    return {name_of(figure), Table::heads, {std::string(facts.name)}, std::string(facts.title), facts};
  }
  const std::string score(name_of(figure.metric)), reference(name_of(*figure.reference)),
      what(name_of(figure.figure));
  FigureInfo info{name_of(figure),
                  Table::agreement,
                  {reference, score, what},
                  fmt::format("{} of {} against {}", what, score, reference),
                  facts_of(figure.figure)};
  std::string setting;
  if (window) setting += fmt::format(", window {}", *window);
  if (reserve > 0) setting += fmt::format(", the last {} reserved", counted(reserve, "token"));
  info.path.back() += setting;
  info.title += setting;
  return info;
}

}  // namespace kvreplay::viewer
