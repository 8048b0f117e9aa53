#include "viewer/app/path_prompt.hpp"

#include "viewer/gl/ui_context.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <algorithm>
#include <imgui_stdlib.h>
#include <utility>

namespace kvreplay::viewer {
namespace {

struct Completing {
  const FolderListing* listing;
  bool* to_end;
};

int on_edit(ImGuiInputTextCallbackData* data) {
  auto* const completing = static_cast<Completing*>(data->UserData);
  if (data->EventFlag == ImGuiInputTextFlags_CallbackCompletion && completing->listing != nullptr) {
    const std::string_view typed(data->Buf, static_cast<std::size_t>(data->BufTextLen));
    const std::string whole = completed(typed, *completing->listing);
    if (whole != typed) {
      data->DeleteChars(0, data->BufTextLen);
      data->InsertChars(0, whole.c_str());
    }
  }
  if (data->EventFlag == ImGuiInputTextFlags_CallbackAlways && std::exchange(*completing->to_end, false)) {
    data->CursorPos = data->BufTextLen;
    data->SelectionStart = data->SelectionEnd = data->CursorPos;
  }
  return 0;
}

}  // namespace

void PathPrompt::begin() {
  typed_.clear();
  ++begun_;
}

std::optional<std::filesystem::path> PathPrompt::draw(Desk& desk, const char* hint, float height,
                                                      bool take_keyboard) {
  const Question question{.key = {"folder", begun_, typed_},
                          .title = "Looking into a folder",
                          .urgency = Urgency::now,
                          .slot = {"folder", begun_}};
  const auto listing =
      desk.ask<FolderListing>(question, [typed = typed_](JobControl&) { return folder_listing(typed); });
  if (take_keyboard) ImGui::SetKeyboardFocusHere();
  ImGui::SetNextItemWidth(-1);
  Completing completing{listing && !listing.stale ? listing.value.get() : nullptr, &to_end_};
  const bool enter =
      ImGui::InputTextWithHint("##path", hint, &typed_,
                               ImGuiInputTextFlags_EnterReturnsTrue | ImGuiInputTextFlags_CallbackCompletion |
                                   ImGuiInputTextFlags_CallbackAlways,
                               on_edit, &completing);
  std::optional<std::filesystem::path> chosen;
  if (enter && !typed_.empty()) chosen = path_of(typed_);
  const Theme& t = theme();
  const float line = ImGui::GetTextLineHeight() + t.px(3);
  const std::size_t count = listing ? listing->entries.size() : 0;
  const float rows = static_cast<float>(std::clamp<std::size_t>(count, 1, 40)) * line + t.px(2);
  ImGui::PushStyleVar(ImGuiStyleVar_ItemSpacing, {t.px(6), t.px(3)});
  ImGui::BeginChild("entries", {0, std::min(rows, height)});
  if (listing && !listing->readable)
    dim_text("There is no such folder.");
  else if (listing && count == 0)
    dim_text("No folder or .npz begins like that.");
  for (std::size_t i = 0; i < count; ++i) {
    const FolderEntry& entry = listing->entries[i];
    const bool opens = entry.kind != PathKind::folder;
    ImGui::PushID(static_cast<int>(i));
    const std::string name = entry.name + (opens ? "" : "/");
    const std::string kind(name_of(entry.kind));
    const float room = ImGui::GetContentRegionAvail().x - ImGui::CalcTextSize("results").x - t.px(12);
    if (ImGui::Selectable(elided(name, room).c_str())) {
      const std::string whole = std::string(folder_part(typed_)) + entry.name;
      if (opens) {
        chosen = path_of(whole);
      } else {
        typed_ = whole + "/";
        to_end_ = true;
      }
    }
    if (opens) {
      ImGui::SameLine(room + t.px(8));
      colored_text(kind, t.accent);
    }
    ImGui::PopID();
  }
  if (listing && listing->more) dim_text("and more: type on");
  ImGui::EndChild();
  ImGui::PopStyleVar();
  return chosen;
}

}  // namespace kvreplay::viewer
