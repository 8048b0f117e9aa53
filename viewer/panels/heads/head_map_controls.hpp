#pragma once

#include "viewer/model/choice.hpp"
#include "viewer/panels/heads/head_map_source.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// Which figure the head map shows, and the controls that choose it. Unless another figure was chosen it is
/// one measure of how well the score that is compared follows the reference (AppState::comparison).
class HeadMapControls {
 public:
  /// Draws the controls; null where the run has no figure to show.
  const FigureInfo* draw(PanelContext& context, const HeadMapSource& source);
  /// The same without drawing.
  const FigureInfo* shown(const AppState& state, const HeadMapSource& source) const;

  nlohmann::json save() const;
  void load(const nlohmann::json& json);

 private:
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

  std::optional<std::string> fixed_;                     // a figure that stays, whatever is compared
  AgreementFigure measure_ = AgreementFigure::spearman;  // else
  std::uint64_t listed_ = 0;                             // HeadMapSource::list() that the rest was made of
  Node menu_;
  std::vector<Choice> choices_;   // the same as a list, one of each of HeadMapSource::figures()
  std::vector<TokenPair> pairs_;  // that the run has an agreement of
};

}  // namespace kvreplay::viewer
