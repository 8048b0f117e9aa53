#include "viewer/app/start_page.hpp"

#include "viewer/gl/ui_context.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <algorithm>

namespace kvreplay::viewer {
namespace {

constexpr const char* kCapture =
    "python3 data/capture/kvcapture.py --model Qwen/Qwen3-0.6B --prompt text.txt --decode 128 --out DUMP";

struct Kinds {
  std::vector<PathKind> list;
};

void wrapped(const char* text, ImU32 color) {
  ImGui::PushTextWrapPos(0);
  colored_text(text, color);
  ImGui::PopTextWrapPos();
}

void gap() { ImGui::Dummy({0, theme().px(6)}); }

}  // namespace

std::optional<std::filesystem::path> StartPage::draw_recent(Desk& desk,
                                                            const std::vector<std::string>& recent) {
  if (recent.empty()) return std::nullopt;
  const Theme& t = theme();
  heading("Opened before");
  const Question question{
      .key = {"recent", recent}, .title = "Looking for what was opened before", .urgency = Urgency::now};
  const auto kinds = desk.ask<Kinds>(question, [recent](JobControl&) {
    Kinds found;
    for (const std::string& path : recent) found.list.push_back(path_kind(path));
    return found;
  });
  std::optional<std::filesystem::path> chosen;
  for (std::size_t i = 0; i < recent.size(); ++i) {
    const std::filesystem::path path(recent[i]);
    const PathKind kind = kinds ? kinds->list[i] : PathKind::folder;
    ImGui::PushID(static_cast<int>(i));
    const ImVec2 at = ImGui::GetCursorScreenPos();
    const float width = ImGui::GetContentRegionAvail().x;
    if (ImGui::Selectable("##recent", false, 0, {0, ImGui::GetTextLineHeight()})) chosen = path;
    tip(recent[i]);
    ImGui::PopID();
    const std::string word(name_of(kind)), name = elided(path.filename().string(), width * 0.4F);
    ImDrawList* list = ImGui::GetWindowDrawList();
    list->AddText(at, kind == PathKind::missing ? t.faint : t.text, name.c_str());
    const float word_at = width - ImGui::CalcTextSize("missing").x - t.px(4);
    const float folder_at = ImGui::CalcTextSize(name.c_str()).x + t.px(12);
    list->AddText({at.x + folder_at, at.y}, t.dim,
                  elided(path.parent_path().string(), word_at - folder_at - t.px(12)).c_str());
    list->AddText({at.x + word_at, at.y}, kind == PathKind::missing ? t.error : t.accent, word.c_str());
  }
  gap();
  return chosen;
}

std::optional<StartPage::Chosen> StartPage::draw(Desk& desk, const Area& area, const Given& given) {
  const Theme& t = theme();
  const float width = std::min(t.px(640), area.width * 0.94F);
  ImGui::SetCursorScreenPos(
      {area.x + (area.width - width) / 2, area.y + std::min(t.px(40), area.height * 0.06F)});
  ImGui::BeginChild("start", {width, area.height * 0.92F});
  std::optional<Chosen> chosen;
  if (!given.opening.empty()) {
    wrapped(("Opening " + given.opening + " ...").c_str(), t.dim);
    ImGui::EndChild();
    return chosen;
  }
  if (!given.error.empty()) {
    error_line(given.error);
    gap();
  }
  wrapped(
      "A dump is a folder with the queries, keys and values that a language model really computed. Open one "
      "to see "
      "which heads, tokens and channels an approximation gets wrong, and what a policy would cost.",
      t.text);
  gap();
  if (!given.sample.empty()) {
    if (ImGui::Button("Open the sample")) chosen = Chosen{given.sample, true};
    tip(given.sample.string());
    ImGui::SameLine();
    ImGui::AlignTextToFramePadding();
    dim_text(elided("a small Llama that read 896 tokens of hashlib.py and wrote 128",
                    ImGui::GetContentRegionAvail().x));
    gap();
  }
  if (const auto path = draw_recent(desk, given.recent)) chosen = Chosen{*path, false};
  heading("Open a dump or a result folder");
  const float below = 5 * ImGui::GetTextLineHeightWithSpacing() + t.px(40);
  const float room = std::max(ImGui::GetContentRegionAvail().y - ImGui::GetFrameHeight() - below, t.px(60));
  if (const auto path = prompt_.draw(desk, "its path; Tab completes; or drop it on the window",
                                     std::min(room, t.px(190)), false))
    chosen = Chosen{*path, false};
  gap();
  heading("A dump of your own");
  wrapped("One script writes it while a Hugging Face model runs:", t.dim);
  const bool copy = small_button("Copy");
  if (copy) ImGui::SetClipboardText(kCapture);
  ImGui::SameLine();
  ImGui::PushFont(mono_font());
  wrapped(kCapture, t.text);
  ImGui::PopFont();
  ImGui::EndChild();
  return chosen;
}

}  // namespace kvreplay::viewer
