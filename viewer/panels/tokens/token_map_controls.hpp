#pragma once

#include "viewer/work/entry_tiles.hpp"
#include "viewer/work/state.hpp"

#include <nlohmann/json.hpp>

#include <string>

namespace kvreplay::viewer {

/// What the token map shows of the selected head, and the controls that choose it.
class TokenMapControls {
 public:
  /// Draws the controls, on more lines where the panel is narrow.
  void draw(AppState& state);
  EntryView view(const Selection& selection) const;
  bool strips() const { return strips_; }

  std::string quantity() const;  ///< "exact_remove", "(joint − exact_joint) / exact_joint"
  std::string unit() const;      ///< empty: a plain number
  bool compares() const { return against_ != EntryView::Against::nothing; }
  /// Of a comparison, differences may span decades; places lie within -1..1.
  bool spans_decades() const { return compares() && against_ != EntryView::Against::rank; }
  bool is_signed() const { return compares() || shown_ == EntryTerm::logit; }
  EntryTerm shown() const { return shown_; }

  /// Keys of the panel's own settings.
  nlohmann::json save() const;
  void load(const nlohmann::json& json);

 private:
  EntryTerm shown_ = EntryTerm::exact_remove, other_ = EntryTerm::attn;
  EntryView::Against against_ = EntryView::Against::nothing;
  bool strips_ = true;
};

}  // namespace kvreplay::viewer
