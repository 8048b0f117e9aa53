#include "viewer/panels/text/find_bar.hpp"

#include "viewer/model/text_layout.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <imgui_stdlib.h>
#include <numeric>
#include <utility>

namespace kvreplay::viewer {

std::size_t bytes_of(const TextMatches& matches) {
  return sizeof(matches) + matches.all.capacity() * sizeof(TextMatch);
}

void FindBar::open() { open_ = focus_ = true; }

bool FindBar::close() {
  found_ = {};
  wanted_ = false;
  return std::exchange(open_, false);
}

std::span<const TextMatch> FindBar::matches() const {
  return found_ ? std::span<const TextMatch>(found_->all) : std::span<const TextMatch>();
}

/// To the next match, or the one before; from the token that is selected, or, while one types, from where
/// one was.
void FindBar::go(AppState& state, bool forward, bool from_here) {
  if (matches().empty()) return;
  const Index from = from_here ? state.selection().token.value_or(-1) : from_ - 1;
  const TextMatch& match = matches()[next_match(matches(), from, forward)];
  Selection next = state.selection();
  next.token = match.first;
  next.tokens.resize(static_cast<std::size_t>(match.last - match.first + 1));
  std::iota(next.tokens.begin(), next.tokens.end(), match.first);
  state.select(std::move(next), from_here ? "" : "find");
}

std::string FindBar::place(const AppState& state) const {
  if (typed_.empty()) return "";
  if (!found_ || found_.stale) return "...";
  if (matches().empty()) return "not found";
  const std::optional<Index> token = state.selection().token;
  const auto at = std::find_if(matches().begin(), matches().end(),
                               [&](const TextMatch& match) { return match.first == token; });
  if (at == matches().end()) return fmt::format("{} found", matches().size());
  return fmt::format("{} of {}", at - matches().begin() + 1, matches().size());
}

void FindBar::draw(PanelContext& context) {
  if (!open_) return;
  AppState& state = context.state;
  const Theme& t = theme();
  if (std::exchange(focus_, false)) {
    ImGui::SetKeyboardFocusHere();
    from_ = state.selection().token.value_or(0);
  }
  const float rest = ImGui::CalcTextSize("8888 of 8888").x + 3 * ImGui::GetFrameHeight() + t.px(34);
  ImGui::SetNextItemWidth(std::clamp(ImGui::GetContentRegionAvail().x - rest, t.px(60), t.px(260)));
  const bool enter =
      ImGui::InputTextWithHint("##find", "Find in the text", &typed_, ImGuiInputTextFlags_EnterReturnsTrue);
  const bool escape = ImGui::IsKeyPressed(ImGui::GetKeyIndex(ImGuiKey_Escape)) &&
                      (ImGui::IsItemActive() || ImGui::IsItemDeactivated());
  if (ImGui::IsItemEdited()) wanted_ = !typed_.empty();
  if (enter) focus_ = true;
  if (escape) {
    close();
    return;
  }
  found_ = {};
  if (!typed_.empty()) {
    const std::shared_ptr<const Run>& run = state.run();
    found_ = context.desk.ask<TextMatches>(
        {.key = {run->key(), "find", typed_},
         .title = "Finding " + typed_,
         .urgency = Urgency::now,
         .slot = {run->key(), "find"}},
        [run, typed = typed_](JobControl&) {
          return TextMatches{find_in_tokens(reading_texts(run->labels(), run->shape().T), typed)};
        });
  }
  if (wanted_ && found_ && !found_.stale) {
    wanted_ = false;
    go(state, true, false);
  }
  ImGui::SameLine();
  if (ImGui::ArrowButton("previous", ImGuiDir_Up)) go(state, false, true);
  tip("The match before (Shift+Enter)");
  ImGui::SameLine(0, t.px(2));
  if (ImGui::ArrowButton("next", ImGuiDir_Down)) go(state, true, true);
  tip("The next match (Enter)");
  if (enter) go(state, !ImGui::GetIO().KeyShift, true);
  ImGui::SameLine();
  ImGui::AlignTextToFramePadding();
  dim_text(place(state));
  ImGui::SameLine(ImGui::GetContentRegionMax().x - ImGui::GetFrameHeight());
  if (ImGui::Button("x", {ImGui::GetFrameHeight(), 0})) close();
  tip("Closes the search (Escape)");
}

}  // namespace kvreplay::viewer
