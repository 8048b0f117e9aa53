#pragma once

#include "data/facts_table.hpp"
#include "viewer/model/choice.hpp"
#include "viewer/model/numbers.hpp"

#include <functional>
#include <imgui.h>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Small controls that panels have in common, and the one way in which menus of names look: what it is in
// plain words, then its name, under headings; long ones with a field that takes the keyboard and leaves what
// matches.

namespace kvreplay::viewer {

/// The entries, in a popup or combo that is open: the number of the one that was chosen, or nothing. `now` is
/// the name that is marked. `tree`, where there is one, draws them as menus within menus while nothing is
/// typed; what is chosen there is its own affair.
std::optional<std::size_t> choice_list(std::span<const Choice> choices, const std::string& now,
                                       const std::function<void()>& tree = {});

/// A combo box that shows `now`, as wide as the next item.
std::optional<std::size_t> choice_combo(const char* id, const std::string& now,
                                        std::span<const Choice> choices, ImGuiComboFlags flags = 0);

/// Everything in a table of facts, with as much as it says of each.
template <class Facts, std::size_t N>
std::vector<Choice> choices_of(const FactsTable<Facts, N>& table) {
  std::vector<Choice> choices;
  for (const Facts& one : table) {
    Choice choice{.name = std::string(one.name)};
    if constexpr (requires { one.plain; }) choice.plain = one.plain;
    if constexpr (requires { one.meaning; }) choice.tip = one.meaning;
    choices.push_back(std::move(choice));
  }
  return choices;
}

/// "attention paid to it, summed\nattn: Attention that the window pays ..": for tooltips.
std::string about(const Choice& choice);

/// A quiet text in the middle of what is left of the panel: what to do where there is nothing to show.
void hint(const std::string& text);
/// Text in the colour of errors, on the current line.
void error_line(const std::string& text);
/// Text in a colour that is broken into lines of so many pixels; 0: of what is left of the window.
void wrapped_text(std::string_view text, ImU32 color, float width = 0);
/// Text in a colour, on the current line.
void colored_text(std::string_view text, ImU32 color);
/// Text in a colour at the right end of `width` pixels; without it, of what is left of a table's cell.
void right_aligned(const std::string& text, ImU32 color, float width);
void right_aligned(const std::string& text, ImU32 color);
/// Text in the font for numbers at the right end of a table's cell; bold: as wide as it would be otherwise.
void right_aligned_number(const std::string& text, ImU32 color, bool bold = false);
/// Text in the font for numbers, on the current line.
void mono_text(const std::string& text);
/// Text in a quieter colour, on the current line.
void dim_text(const std::string& text);
/// Text in a colour, as much of it as `width` pixels take (without it, what is left of the line or the
/// table's cell); all of it as a tooltip where something is missing.
void elided_text(const std::string& text, ImU32 color, float width);
void elided_text(const std::string& text, ImU32 color);
/// Its beginning, as much as `width` pixels take, with a mark where something is missing.
std::string elided(const std::string& text, float width);
/// Its words in lines of `width` pixels, the last of at most so many elided.
std::vector<std::string> wrapped(const std::string& text, float width, std::size_t most_lines);
/// A small sign that something is being computed, at the end of the current line.
void busy_mark();

/// Puts the next control beside the last one where `width` pixels are left there, else on a line of its own.
void flow(float width);
/// The width in pixels of a check box with this label.
float check_width(const char* label);
/// A low button, as high as a line of text and as wide as small_button_width().
bool small_button(const char* label);
float small_button_width(const char* label);
/// ImGui::BeginCombo that shows as much of `now` as it has room for.
bool begin_combo(const char* id, const std::string& now, ImGuiComboFlags flags = ImGuiComboFlags_None);
/// A combo box; true where `chosen` changed. `width` in points.
bool choose(const char* label, std::span<const Choice> choices, std::size_t& chosen, float width);
bool choose(const char* label, std::span<const std::string_view> names, std::size_t& chosen, float width);
/// A combo box of everything in a table of facts; true where `chosen` changed.
template <class Facts, std::size_t N>
bool choose(const char* label, const FactsTable<Facts, N>& table, decltype(Facts::id)& chosen, float width) {
  auto at = static_cast<std::size_t>(chosen);
  if (!choose(label, choices_of(table), at, width)) return false;
  chosen = table.all()[at];
  return true;
}
/// Buttons side by side of which one is pressed.
bool segments(const char* id, std::span<const std::string_view> names, std::size_t& chosen);
/// A check box: whether the token map fades what the shown setting evicts; true where it changed.
bool fade_evicted(bool& fade);
/// Scope guard: if `out`, widgets drawn during its lifetime are invisible and take no room. Used for controls
/// in a figure.
class HiddenDraw {
 public:
  explicit HiddenDraw(bool out);
  ~HiddenDraw();
  HiddenDraw(const HiddenDraw&) = delete;
  HiddenDraw& operator=(const HiddenDraw&) = delete;

 private:
  struct Cursor {
    ImVec2 now, previous_line, most, ideal_most, line, previous;
  };
  std::optional<Cursor> cursor_;
};
/// Scope guard: if `over`, the area drawn during its lifetime is greyed out, from the cursor at the start to
/// the lower right corner of the window. kShows is the share of the outdated content that shows through.
class StaleOverlay {
 public:
  static constexpr float kShows = 0.4F;
  explicit StaleOverlay(bool over);
  ~StaleOverlay();
  StaleOverlay(const StaleOverlay&) = delete;
  StaleOverlay& operator=(const StaleOverlay&) = delete;

 private:
  bool over_;
  ImVec2 from_;
};
/// A heading within a panel.
void heading(const char* text);
/// Name and value of a figure, the value in the font for numbers.
void figure(const char* name, const std::string& value);
/// Its width, and that of text in the font for numbers, in pixels.
float figure_width(const char* name, const std::string& value);
float mono_width(const std::string& text);
/// Shows a tooltip for the last item where it is hovered for a moment.
void tip(std::string_view text);

}  // namespace kvreplay::viewer
