#include "viewer/panels/pinned_run.hpp"

#include "viewer/model/numbers.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <cmath>
#include <memory>

namespace kvreplay::viewer {
namespace {

void offer_pinned(AppState& state, const char* label, std::string_view about) {
  if (!state.run() || !state.pinned.run() || state.run() == state.pinned.run()) return;
  if (const std::string& why = state.pinned.why_not(*state.run()); !why.empty()) return error_line(why);
  flow(check_width(label));
  ImGui::Checkbox(label, &state.show_difference);
  tip(fmt::format("{}, {}", about, state.pinned.run()->name()));
}

constexpr float kKey = 16;  // points

/// Room for a key on the current line; where it begins.
ImVec2 begin_key() {
  const ImVec2 at = ImGui::GetCursorScreenPos();
  ImGui::Dummy({theme().px(kKey), ImGui::GetTextLineHeight()});
  return {at.x, std::floor(at.y + ImGui::GetTextLineHeight() / 2) + 0.5F};
}

void end_key(const Run& pinned) {
  ImGui::SameLine(0, theme().px(5));
  elided_text(pinned.name(), theme().dim, ImGui::GetContentRegionAvail().x);
}

}  // namespace

std::string less_than_pinned(const std::string& quantity, const Run& pinned) {
  return fmt::format("{} \xE2\x88\x92 that of {}", quantity, pinned.name());
}

void choose_difference(AppState& state) {
  offer_pinned(state, "Less pinned", "This run less the pinned one");
}

void choose_beside(AppState& state) { offer_pinned(state, "Pinned", "Beside this run the pinned one"); }

Stroke pinned_stroke(Stroke stroke) { return stroke == Stroke::solid ? Stroke::dashed : Stroke::dotted; }

void draw_pinned_key(const Run& pinned) {
  const ImVec2 at = begin_key();
  draw_key(ImGui::GetWindowDrawList(), at, theme().px(kKey), theme().dim, Stroke::dashed, kPinnedThickness);
  end_key(pinned);
}

void draw_pinned_key(const Run& pinned, ImU32 color) {
  const ImVec2 at = begin_key();
  ImGui::GetWindowDrawList()->AddCircleFilled({at.x + theme().px(kKey / 2), at.y}, theme().px(3.4F), color);
  end_key(pinned);
}

std::vector<std::string> with_pinned(std::vector<std::string> settings, AppState& state, bool shown,
                                     std::string_view how) {
  const std::shared_ptr<const Run> run = state.subtracted();
  if (shown && run) settings.push_back(fmt::format("{} {}", how, run->path().string()));
  return settings;
}

std::string pinned_text(double own, double pinned) {
  const double more = difference_of(pinned, own);
  if (std::isnan(more)) return number_text(pinned);
  return fmt::format("{} ({}{})", number_text(pinned), more < 0 ? "" : "+", number_text(more));
}

}  // namespace kvreplay::viewer
