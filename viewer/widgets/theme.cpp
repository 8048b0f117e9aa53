#include "viewer/widgets/theme.hpp"

namespace kvreplay::viewer {
namespace {

constexpr ImU32 hex(unsigned rgb) { return IM_COL32((rgb >> 16) & 255, (rgb >> 8) & 255, rgb & 255, 255); }

Theme dark_theme() {
  Theme t;
  t.dark = true;
  t.window = hex(0x17181b);
  t.panel = hex(0x1f2125);
  t.raised = hex(0x2a2d32);
  t.border = hex(0x33363c);
  t.text = hex(0xe4e6ea);
  t.dim = hex(0xa0a5ad);
  t.faint = hex(0x646a73);
  t.accent = hex(0x4ea1f3);
  t.accent_soft = hex(0x29486a);
  t.warning = hex(0xf0b24a);
  t.error = hex(0xf0706a);
  t.plot = hex(0x17181b);
  t.grid = hex(0x2d3036);
  t.series = {hex(0x56b4e9), hex(0xe69f00), hex(0x2fbf8f), hex(0xe97fb5),
              hex(0xf0e442), hex(0xe8643c), hex(0x9d8cf0), hex(0xb8bcc4)};
  t.ink.outside = {31, 33, 37};
  t.ink.pending = {44, 47, 52};
  t.ink.hatch_a = {31, 33, 37};
  t.ink.hatch_b = {38, 41, 46};
  return t;
}

Theme light_theme() {
  Theme t;
  t.dark = false;
  t.window = hex(0xe9ebee);
  t.panel = hex(0xfbfbfc);
  t.raised = hex(0xeef0f3);
  t.border = hex(0xd2d6dc);
  t.text = hex(0x1e2126);
  t.dim = hex(0x5b626c);
  t.faint = hex(0x99a0aa);
  t.accent = hex(0x1668c1);
  t.accent_soft = hex(0xc9dff6);
  t.warning = hex(0xa86700);
  t.error = hex(0xc03530);
  t.plot = hex(0xffffff);
  t.grid = hex(0xe3e6ea);
  t.series = {hex(0x0072b2), hex(0xd07f00), hex(0x00875f), hex(0xb8478a),
              hex(0x8a8000), hex(0xc74a1b), hex(0x5f4bc4), hex(0x555b64)};
  t.ink.outside = {251, 251, 252};
  t.ink.pending = {236, 238, 241};
  t.ink.hatch_a = {251, 251, 252};
  t.ink.hatch_b = {240, 242, 244};
  t.ink.under = {0, 130, 150};
  t.ink.over = {214, 0, 150};
  return t;
}

Theme current = dark_theme();

void set_style(const Theme& t) {
  ImGuiStyle style;
  style.WindowPadding = {8, 8};
  style.FramePadding = {7, 4};
  style.ItemSpacing = {8, 5};
  style.ItemInnerSpacing = {5, 4};
  style.ScrollbarSize = 11;
  style.GrabMinSize = 10;
  style.WindowRounding = 5;
  style.ChildRounding = 4;
  style.FrameRounding = 4;
  style.PopupRounding = 5;
  style.GrabRounding = 4;
  style.TabRounding = 4;
  style.ScrollbarRounding = 6;
  style.WindowBorderSize = 0;
  style.PopupBorderSize = 1;
  style.FrameBorderSize = 0;
  style.CellPadding = {6, 2};
  style.ScaleAllSizes(t.scale);
  style.PopupBorderSize = 1;

  const auto set = [&](ImGuiCol which, ImU32 color) {
    style.Colors[which] = ImGui::ColorConvertU32ToFloat4(color);
  };
  set(ImGuiCol_Text, t.text);
  set(ImGuiCol_TextDisabled, t.faint);
  set(ImGuiCol_WindowBg, t.window);
  set(ImGuiCol_ChildBg, IM_COL32(0, 0, 0, 0));
  set(ImGuiCol_PopupBg, t.panel);
  set(ImGuiCol_Border, t.border);
  set(ImGuiCol_BorderShadow, IM_COL32(0, 0, 0, 0));
  set(ImGuiCol_FrameBg, t.raised);
  set(ImGuiCol_FrameBgHovered, t.border);
  set(ImGuiCol_FrameBgActive, t.border);
  set(ImGuiCol_TitleBg, t.panel);
  set(ImGuiCol_TitleBgActive, t.panel);
  set(ImGuiCol_MenuBarBg, t.panel);
  set(ImGuiCol_ScrollbarBg, IM_COL32(0, 0, 0, 0));
  set(ImGuiCol_ScrollbarGrab, t.border);
  set(ImGuiCol_ScrollbarGrabHovered, t.faint);
  set(ImGuiCol_ScrollbarGrabActive, t.faint);
  set(ImGuiCol_CheckMark, t.accent);
  set(ImGuiCol_SliderGrab, t.accent);
  set(ImGuiCol_SliderGrabActive, t.accent);
  set(ImGuiCol_Button, t.raised);
  set(ImGuiCol_ButtonHovered, t.border);
  set(ImGuiCol_ButtonActive, t.accent_soft);
  set(ImGuiCol_Header, t.accent_soft);
  set(ImGuiCol_HeaderHovered, t.raised);
  set(ImGuiCol_HeaderActive, t.accent_soft);
  set(ImGuiCol_Separator, t.border);
  set(ImGuiCol_Tab, t.panel);
  set(ImGuiCol_TabHovered, t.raised);
  set(ImGuiCol_TabActive, t.raised);
  set(ImGuiCol_TableHeaderBg, t.raised);
  set(ImGuiCol_TableBorderStrong, t.border);
  set(ImGuiCol_TableBorderLight, t.grid);
  set(ImGuiCol_TableRowBg, IM_COL32(0, 0, 0, 0));
  set(ImGuiCol_TableRowBgAlt, faded(t.raised, 0.35F));
  set(ImGuiCol_TextSelectedBg, t.accent_soft);
  set(ImGuiCol_NavHighlight, t.accent);
  set(ImGuiCol_PlotHistogram, t.accent);
  set(ImGuiCol_ModalWindowDimBg, IM_COL32(0, 0, 0, t.dark ? 120 : 70));
  ImGui::GetStyle() = style;
}

}  // namespace

const Theme& theme() { return current; }

void use_theme(bool dark, float scale) {
  current = dark ? dark_theme() : light_theme();
  current.scale = scale;
  set_style(current);
}

ImU32 faded(ImU32 color, float opacity) {
  const auto alpha = static_cast<ImU32>(static_cast<float>(color >> IM_COL32_A_SHIFT & 255) * opacity);
  return (color & ~IM_COL32_A_MASK) | alpha << IM_COL32_A_SHIFT;
}

}  // namespace kvreplay::viewer
