#pragma once

#include "viewer/model/token_text.hpp"
#include "viewer/questions/job_queue.hpp"
#include "viewer/questions/state.hpp"
#include "viewer/questions/token_tint.hpp"

#include <functional>
#include <imgui.h>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace kvreplay::viewer {

/// Content of the text in this frame.
struct TextViewContent {
  std::shared_ptr<const TextLayout> layout;  ///< of all T tokens
  Index l = 0;                               ///< those behind are decoding steps: never evicted
  const TokenTint* tint = nullptr;           ///< of the first l; null: not known
  bool by_rank = false;                      ///< tinted by their ranks
  std::function<float(Index)> evicted;  ///< the share of heads that evict a token, 0..1; empty: not known
  std::optional<Index> selected, row, hovered;
  std::span<const Index> chosen;                ///< together, ascending
  std::span<const TextMatch> matches;           ///< of a search
  std::span<const QuestionFacts::Span> marked;  ///< overlined
  bool scrolls = true;                          ///< a picture has no scroll bar
};

/// Token under the mouse, and the mouse's actions on it.
struct TextHit {
  std::optional<Index> token;
  bool clicked = false;
  std::optional<std::pair<Index, Index>> dragged;  ///< over these tokens, first and last, once it ended
};

/// Tokens in flowing text: tinted, struck through and dimmed, marked. Draws the lines in view only.
class TextView {
 public:
  /// The pixels of a line, within `size` pixels from the cursor, beside a scroll bar where it scrolls.
  static float line_width(ImVec2 size, bool scrolls = true);
  static float line_height();
  /// Draws within `size` pixels from the cursor on.
  TextHit draw(const char* id, ImVec2 size, const TextViewContent& content);
  /// Brings a token into view, in the middle where it is not.
  void show(Index token) { wanted_ = token; }
  /// The token that the first line in view begins with; and begins anew with another view's.
  std::optional<Index> top() const { return top_; }
  void begin_at(std::optional<Index> token) {
    *this = TextView();
    top_ = token;
  }
  /// True if a token was in view in the last frame.
  bool in_view(Index token) const;
  /// True if the next frame looks different although nothing else changes.
  bool moves() const { return moves_; }
  /// For tests: where a token was drawn last; pixels of the window, beyond its edges where it is not in view.
  ImVec2 pixel_of(Index token) const;

 private:
  void scroll(const TextViewContent& content, float height);
  void draw_line(const TextViewContent& content, Index number, ImVec2 at) const;
  TextHit take_mouse(const TextViewContent& content, ImVec2 at);

  std::shared_ptr<const TextLayout> layout_;  // of the last frame
  std::optional<Index> wanted_, top_;  // to be shown; the token that the first line in view begins with
  std::optional<Index> drag_from_, drag_to_;
  ImVec2 at_;                  // of the first line
  Index first_ = 0, end_ = 0;  // the lines in view
  bool moves_ = false;
};

/// The colour of a level of TokenTint behind a token, -255 .. 255, and of its letters.
ImU32 tint_color(int level);
ImU32 tint_ink(int level);
/// The colour of lines over what is marked.
ImU32 mark_color();

/// The lines of a run's tokens, broken in the background.
class TextLines {
 public:
  /// In the present font, `width` pixels wide. Where a newer one is not there yet, the last one.
  Answer<TextLayout> ask(PanelContext& context, float width);

 private:
  struct Advances {
    float em = 0;
    std::vector<float> of;  // by code point
    float others = 0;
  };
  std::shared_ptr<const Advances> advances_;  // of the present font
};

}  // namespace kvreplay::viewer
