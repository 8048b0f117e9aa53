#include "viewer/widgets/theme.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace kvreplay::viewer {
namespace {

constexpr Rgb rgb(unsigned rgb) {
  return {static_cast<std::uint8_t>(rgb >> 16), static_cast<std::uint8_t>(rgb >> 8 & 255),
          static_cast<std::uint8_t>(rgb & 255)};
}

Rgb rgb_of(ImU32 color) {
  const auto channel = [color](int shift) { return static_cast<std::uint8_t>(color >> shift & 255); };
  return {channel(IM_COL32_R_SHIFT), channel(IM_COL32_G_SHIFT), channel(IM_COL32_B_SHIFT)};
}

}  // namespace

Theme theme_of(bool dark) {
  const auto pick = [dark](unsigned in_dark, unsigned in_light) {
    return to_imgui(rgb(dark ? in_dark : in_light));
  };
  const auto ink = [dark](unsigned in_dark, unsigned in_light) { return rgb(dark ? in_dark : in_light); };
  Theme t;
  t.dark = dark;
  t.window = pick(0x17181b, 0xe9ebee);
  t.panel = pick(0x1f2125, 0xfbfbfc);
  t.raised = pick(0x2a2d32, 0xeef0f3);
  t.border = pick(0x33363c, 0xd2d6dc);
  t.text = pick(0xe4e6ea, 0x1e2126);
  t.dim = pick(0xa8adb5, 0x5b626c);
  t.faint = pick(0x949aa3, 0x646b75);
  t.accent = pick(0x4ea1f3, 0x1668c1);
  t.accent_soft = pick(0x24405f, 0xc9dff6);
  t.knob = pick(0x2d5a8a, 0x8ab8ea);
  t.warning = pick(0xf0b24a, 0xa86700);
  t.error = pick(0xf0706a, 0xc03530);
  t.plot = pick(0x17181b, 0xffffff);
  t.grid = pick(0x2d3036, 0xe3e6ea);
  t.series = {pick(0x56b4e9, 0x0072b2), pick(0xe69f00, 0xd07f00), pick(0x2fbf8f, 0x00875f),
              pick(0xe97fb5, 0xb8478a), pick(0xf0e442, 0x8a8000), pick(0xe8643c, 0xc74a1b),
              pick(0x9d8cf0, 0x5f4bc4), pick(0xb8bcc4, 0x555b64)};
  t.ink.outside = t.ink.hatch_a = ink(0x1f2125, 0xfbfbfc);
  t.ink.hatch_b = ink(0x26292e, 0xf0f2f4);
  t.ink.pending = ink(0x2c2f34, 0xeceef1);
  t.ink.under = ink(0x26c6da, 0x008296);
  t.ink.over = ink(0xff40c8, 0xd60096);
  return t;
}

ImU32 tab_ink(const Theme& theme, bool in_front, bool hovered) {
  return in_front || hovered ? theme.text : theme.dim;
}

double contrast(ImU32 a, ImU32 b) {
  const double one = luminance(rgb_of(a)), other = luminance(rgb_of(b));
  return (std::max(one, other) + 0.05) / (std::min(one, other) + 0.05);
}

ImU32 readable(ImU32 ink, ImU32 behind, double least) {
  constexpr ImU32 kBlack = IM_COL32(0, 0, 0, 255), kWhite = IM_COL32(255, 255, 255, 255);
  const ImU32 end = contrast(kWhite, behind) > contrast(kBlack, behind) ? kWhite : kBlack;
  ImU32 found = ink;
  for (float share = 0.0625F; contrast(found, behind) < least && share <= 1; share += 0.0625F)
    found = mixed(ink, end, share);
  return found;
}

namespace {

Theme current = theme_of(true);

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
  set(ImGuiCol_SliderGrab, t.knob);
  set(ImGuiCol_SliderGrabActive, t.knob);
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

void use_theme(bool dark, float pixels_per_point, float text_points) {
  current = theme_of(dark);
  current.scale = pixels_per_point * text_points / kTextPoints;
  set_style(current);
}

ImU32 faded(ImU32 color, float opacity) {
  const auto alpha = static_cast<ImU32>(static_cast<float>(color >> IM_COL32_A_SHIFT & 255) * opacity);
  return (color & ~IM_COL32_A_MASK) | alpha << IM_COL32_A_SHIFT;
}

ImU32 mixed(ImU32 from, ImU32 to, float share) {
  const ImVec4 a = ImGui::ColorConvertU32ToFloat4(from), b = ImGui::ColorConvertU32ToFloat4(to);
  return ImGui::ColorConvertFloat4ToU32({a.x + (b.x - a.x) * share, a.y + (b.y - a.y) * share,
                                         a.z + (b.z - a.z) * share, a.w + (b.w - a.w) * share});
}

}  // namespace kvreplay::viewer
