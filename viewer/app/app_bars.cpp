// The menu bar above the panels and the status line below them.

#include "viewer/app/app.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay::viewer {
namespace {

/// A number that is stepped with buttons on both sides of it; true where it changed. Wraps round.
bool stepper(const char* id, const char* name, Index& value, Index count) {
  const Index before = value;
  ImGui::PushID(id);
  dim_text(name);
  ImGui::SameLine(0, theme().px(4));
  if (ImGui::SmallButton("\xE2\x80\xB9")) value = (value + count - 1) % count;
  ImGui::SameLine(0, theme().px(3));
  ImGui::PushFont(mono_font());
  ImGui::Text("%*d", count > 100 ? 3 : 2, static_cast<int>(value));
  ImGui::PopFont();
  if (ImGui::IsItemHovered() && ImGui::GetIO().MouseWheel != 0)
    value = (value + (ImGui::GetIO().MouseWheel < 0 ? 1 : count - 1)) % count;
  ImGui::SameLine(0, theme().px(3));
  if (ImGui::SmallButton("\xE2\x80\xBA")) value = (value + 1) % count;
  ImGui::PopID();
  return value != before;
}

}  // namespace

void App::draw_menu_bar() {
  if (!ImGui::BeginMenuBar()) return;
  for (const std::string_view menu : kMenus) {
    if (!ImGui::BeginMenu(std::string(menu).c_str())) continue;
    for (const Action& one : actions())
      if (one.menu == menu && ImGui::MenuItem(std::string(one.title).c_str(), one.shortcut.text().c_str()))
        perform(one.id);
    ImGui::EndMenu();
  }
  ImGui::Dummy({theme().px(10), 0});
  if (state_.run()) draw_head_controls();
  ImGui::EndMenuBar();
}

void App::draw_head_controls() {
  Selection next = state_.selection();
  const DumpShape& shape = state_.run()->shape();
  ImGui::SetNextItemWidth(theme().px(170));
  if (ImGui::BeginCombo("##run", state_.run()->name().c_str())) {
    for (std::size_t i = 0; i < state_.runs.size(); ++i) {
      ImGui::PushID(static_cast<int>(i));
      if (ImGui::Selectable(state_.runs[i]->name().c_str(), i == next.run)) next.run = i;
      tip(state_.runs[i]->path().string().c_str());
      ImGui::PopID();
    }
    ImGui::EndCombo();
  }
  tip(fmt::format("{}\n{}", state_.run()->model(), state_.run()->path().string()).c_str());
  stepper("layer", "layer", next.layer, shape.layers);
  stepper("head", "KV head", next.kv_head, shape.n_kv);
  if (shape.group() > 1) {
    dim_text("query head");
    ImGui::SetNextItemWidth(theme().px(86));
    const std::string now = next.query_head ? std::to_string(*next.query_head) : "all (sum)";
    if (ImGui::BeginCombo("##query head", now.c_str())) {
      if (ImGui::Selectable("all (sum)", !next.query_head)) next.query_head.reset();
      for (Index g = 0; g < shape.group(); ++g)
        if (ImGui::Selectable(std::to_string(g).c_str(), next.query_head == g)) next.query_head = g;
      ImGui::EndCombo();
    }
  }
  if (!(next == state_.selection())) state_.select(next, "head");

  Index window = state_.comparison.window;
  dim_text("window w");
  ImGui::SetNextItemWidth(theme().px(64));
  auto typed = static_cast<int>(window);
  if (ImGui::InputInt("##window", &typed, 0, 0, ImGuiInputTextFlags_EnterReturnsTrue))
    state_.comparison.window = std::clamp<Index>(typed, 1, std::max<Index>(shape.l, 1));
  tip("How many of the last prompt queries count, in all panels. Enter applies.");
}

void App::draw_status_bar(float height) {
  const Theme& t = theme();
  const ImGuiViewport* view = ImGui::GetMainViewport();
  const float y = view->Pos.y + view->Size.y - height + (height - ImGui::GetTextLineHeight()) / 2;
  ImGui::SetCursorScreenPos({view->Pos.x + t.px(10), y});
  if (!state_.message().empty()) {
    ImGui::PushStyleColor(ImGuiCol_Text, state_.message_is_error() ? t.error : t.dim);
    ImGui::TextUnformatted(state_.message().c_str());
    ImGui::PopStyleColor();
    if (ImGui::IsItemHovered() && ImGui::CalcTextSize(state_.message().c_str()).x > view->Size.x * 0.6F)
      tip(state_.message().c_str());
  } else if (state_.run()) {
    const DumpShape& s = state_.run()->shape();
    dim_text(
        fmt::format("{}   {} layers \xC2\xB7 {} KV heads \xC2\xB7 {} query heads each \xC2\xB7 d = {} "
                    "\xC2\xB7 prompt {} + {} decoded",
                    state_.run()->model(), s.layers, s.n_kv, s.group(), s.d, s.l, s.T - s.l));
  }
  const std::size_t open_jobs = desk_.open_jobs();
  const std::string right =
      open_jobs > 0 ? fmt::format("{} job{} \xC2\xB7 {}", open_jobs, open_jobs == 1 ? "" : "s",
                                  bytes_text(static_cast<double>(desk_.cached_bytes())))
                    : fmt::format("ready \xC2\xB7 {}", bytes_text(static_cast<double>(desk_.cached_bytes())));
  const float width = ImGui::CalcTextSize(right.c_str()).x;
  ImGui::GetWindowDrawList()->AddRectFilled(
      {view->Pos.x + view->Size.x - width - t.px(24), view->Pos.y + view->Size.y - height},
      {view->Pos.x + view->Size.x, view->Pos.y + view->Size.y}, t.window);
  ImGui::GetWindowDrawList()->AddText({view->Pos.x + view->Size.x - width - t.px(12), y}, t.dim,
                                      right.c_str());
}

void App::draw_welcome(const Area& area) {
  const Theme& t = theme();
  ImGui::SetCursorScreenPos({area.x, area.y + area.height * 0.36F});
  const auto centred = [&](const std::string& text, ImU32 color) {
    const float width = std::min(ImGui::CalcTextSize(text.c_str()).x, area.width * 0.8F);
    ImGui::SetCursorPosX((ImGui::GetWindowWidth() - width) / 2);
    ImGui::PushTextWrapPos(ImGui::GetCursorPosX() + width + 1);
    ImGui::PushStyleColor(ImGuiCol_Text, color);
    ImGui::TextUnformatted(text.c_str());
    ImGui::PopStyleColor();
    ImGui::PopTextWrapPos();
  };
  if (!opening_.empty()) return centred("Opening " + opening_.back().path.string() + " ...", t.dim);
  if (!open_error_.empty()) centred(open_error_, t.error);
  ImGui::PushFont(bold_font());
  centred("Drop a dump or a result folder here", t.text);
  ImGui::PopFont();
  centred("or press " + action(ActionId::open_path).shortcut.text() + " to type its path, " +
              action(ActionId::open_palette).shortcut.text() + " for everything else",
          t.dim);
}

}  // namespace kvreplay::viewer
