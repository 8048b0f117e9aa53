#pragma once

#include "viewer/model/choice.hpp"
#include "viewer/panels/session_fields.hpp"
#include "viewer/questions/figure_map.hpp"
#include "viewer/questions/state.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// Which figure the head map shows, and the controls that choose it: what a setting of What if costs, how
/// well the score that is compared follows the reference (AppState::comparison), or any other. Unless chosen
/// it is what setting A costs (main_cost()); of results without their dump how well the score follows.
class HeadMapControls {
 public:
  /// Draws the controls; null where the run has no figure to show.
  const FigureInfo* draw(PanelContext& context, const HeadMapSource& source);
  /// What draw() would return, without drawing.
  const FigureInfo* shown(const AppState& state, const HeadMapSource& source) const;
  /// What stands beside it in a plot: of what a setting costs how well the score follows, of all else what
  /// setting A costs; null where the run has no such figure.
  const FigureInfo* counterpart(const AppState& state, const HeadMapSource& source,
                                const FigureInfo& shown) const;

  void keep(SessionFields& fields);

 private:
  enum class Kind { cost, agreement, fixed };
  struct Node {
    std::string name;
    std::vector<Node> children;
    const FigureInfo* figure = nullptr;
    Node& child(const std::string& name);
  };
  void list(const HeadMapSource& source);
  void choose_figure(AppState& state, const FigureInfo& figure);
  void draw_menu(AppState& state, const Node& node, const FigureInfo* shown);
  void draw_pair(AppState& state);
  void draw_views(const AppState& state, const FigureInfo& shown);
  const FigureInfo* cost(const AppState& state, const HeadMapSource& source, SettingView view) const;
  const FigureInfo* agreement(const AppState& state, const HeadMapSource& source) const;

  Kind kind_ = Kind::cost;
  SettingView view_ = SettingView::a;
  std::string cost_;                                     // of what_if_figures(); empty: main_cost()
  AgreementFigure measure_ = AgreementFigure::spearman;  // of agreement
  std::string fixed_;                                    // a figure that stays, whatever is compared
  std::uint64_t listed_ = 0;                             // HeadMapSource::list() that the rest was made of
  Node menu_;
  std::vector<Choice> choices_;   // the same as a list, one of each of HeadMapSource::figures()
  std::vector<TokenPair> pairs_;  // that the run has an agreement of
};

}  // namespace kvreplay::viewer
