#include "viewer/questions/worst_head.hpp"

#include "viewer/questions/what_if_figures.hpp"

#include <cmath>
#include <vector>

namespace kvreplay::viewer {

std::optional<std::pair<Index, Index>> WorstHead::look(PanelContext& context) {
  pending_ = false;
  const auto& run = context.run();
  if (run == nullptr || run->dump() == nullptr) return std::nullopt;
  source_.look(context);
  const FigureInfo* const figure =
      source_.find(name_of(SettingFigure{SettingView::beyond_exact, main_cost(*run->dump())}));
  if (figure != nullptr) source_.ask(context, *figure);
  pending_ = source_.pending();
  if (figure == nullptr || pending_ || source_.waits() || source_.map() == nullptr) return std::nullopt;
  const std::vector<HeadPlace> order = worst_first(*source_.map());
  if (order.empty() || std::isnan(order.front().value)) return std::nullopt;
  return std::pair(order.front().layer, order.front().kv_head);
}

}  // namespace kvreplay::viewer
