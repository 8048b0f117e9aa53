#pragma once

#include "viewer/panels/text/text_lines.hpp"
#include "viewer/panels/text/text_view.hpp"
#include "viewer/questions/budget_slide.hpp"

#include <array>
#include <cstddef>
#include <imgui.h>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// One picture of a film: the budget, and below it for either setting the text with what it evicts and the
/// error that comes of it, on one scale.
class FilmView {
 public:
  /// Draws a step of a slide that is done over the whole window. Whether all of it is there.
  bool draw(PanelContext& context, const BudgetSlide& slide, std::size_t step);

 private:
  void begin(const BudgetSlide& slide);
  /// Where the text begins, so that of `lines` lines as many as can be have something to look at.
  Index first_line(const BudgetSlide& slide, Index lines) const;
  void draw_head(const BudgetSlide& slide, std::size_t step, ImVec2 low, float width) const;
  void draw_text(const BudgetSlide& slide, std::size_t step, std::size_t side, ImVec2 low, ImVec2 size);
  void draw_cost(const BudgetSlide& slide, std::size_t step, std::size_t side, ImVec2 low, ImVec2 size) const;
  void draw_curves(const BudgetSlide& slide, std::size_t step, std::size_t side, ImVec2 low,
                   ImVec2 size) const;
  void draw_foot(const BudgetSlide& slide, ImVec2 low, float width) const;

  const BudgetSlide* begun_ = nullptr;
  TextLines lines_;
  std::array<TextView, 2> views_;
  std::vector<QuestionFacts::Span> marked_;
  std::array<std::optional<BudgetSlide::Lost>, 2> lost_;
  std::shared_ptr<const TextLayout> layout_;
  bool moves_ = false;
};

}  // namespace kvreplay::viewer
