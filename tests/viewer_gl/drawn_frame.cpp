#include "tests/viewer_gl/drawn_frame.hpp"

#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <imgui.h>
#include <imgui_internal.h>
#include <map>
#include <optional>

namespace kvreplay::test {
namespace {

using viewer::Area;

/// Rounding of glyphs to pixels.
constexpr float kSlack = 1.01F;

struct Box {
  float left = 0, top = 0, right = 0, bottom = 0;
  bool empty() const { return right <= left || bottom <= top; }
  float width() const { return right - left; }
  float height() const { return bottom - top; }
  Box with(const Box& other) const {
    return {std::min(left, other.left), std::min(top, other.top), std::max(right, other.right),
            std::max(bottom, other.bottom)};
  }
  Box within(const Box& other) const {
    return {std::max(left, other.left), std::max(top, other.top), std::min(right, other.right),
            std::min(bottom, other.bottom)};
  }
};

/// Which letter lies where in the fonts' picture.
class Letters {
 public:
  explicit Letters(const ImFontAtlas& atlas)
      : width_(atlas.TexWidth), height_(atlas.TexHeight), at_(std::size_t(width_) * height_) {
    for (const ImFont* font : atlas.Fonts)
      for (const ImFontGlyph& glyph : font->Glyphs) {
        glyphs_.push_back(&glyph);
        for (int y = int(glyph.V0 * height_ + 0.5F); y < int(glyph.V1 * height_ + 0.5F); ++y)
          for (int x = int(glyph.U0 * width_ + 0.5F); x < int(glyph.U1 * width_ + 0.5F); ++x)
            at_[std::size_t(y) * width_ + x] = int(glyphs_.size());
      }
  }
  /// Null where there is none.
  const ImFontGlyph* at(float u, float v) const {
    const int x = int(u * width_), y = int(v * height_);
    if (x < 0 || y < 0 || x >= width_ || y >= height_) return nullptr;
    const int number = at_[std::size_t(y) * width_ + x];
    return number == 0 ? nullptr : glyphs_[number - 1];
  }
  float texels_u(float u) const { return u * width_; }
  float texels_v(float v) const { return v * height_; }

 private:
  int width_, height_;
  std::vector<int> at_;
  std::vector<const ImFontGlyph*> glyphs_;
};

/// A run of letters, with what was cut off.
struct Run {
  std::string text;  // all that was drawn
  std::string seen;
  Box box, shown;
  float line = 0;   // top of the line that it stands in
  ImU32 color = 0;  // of its letters
  const ImGuiWindow* window = nullptr;
  std::size_t order = 0;  // of drawing
  bool cut_at_side = false, cut_above_or_below = false, turned = false;
};
/// A rectangle that hides what was drawn before it.
struct Cover {
  Box box;
  std::size_t order = 0;
  const ImGuiWindow* window = nullptr;
};
struct Frame {
  std::vector<Run> runs;
  std::vector<Cover> covers;
};

struct Quad {
  Box at, of;  // on the window, in the texture
  ImU32 color = 0;
  bool opaque = false, turned = false;
};

/// The next six indices as a rectangle; nothing where they are none.
std::optional<Quad> quad_of(const ImDrawList& list, const ImDrawCmd& command, unsigned from) {
  const ImDrawIdx* index = list.IdxBuffer.Data + command.IdxOffset + from;
  const ImDrawVert* vertex = list.VtxBuffer.Data + command.VtxOffset;
  const unsigned a = index[0];
  if (index[1] != a + 1 || index[2] != a + 2 || index[3] != a || index[4] != a + 2 || index[5] != a + 3)
    return std::nullopt;
  Quad quad;
  quad.at = quad.of = {1e9F, 1e9F, -1e9F, -1e9F};
  quad.opaque = true;
  quad.color = vertex[a].col;
  for (unsigned i = 0; i < 4; ++i) {
    const ImDrawVert& v = vertex[a + i];
    quad.at = quad.at.with({v.pos.x, v.pos.y, v.pos.x, v.pos.y});
    quad.of = quad.of.with({v.uv.x, v.uv.y, v.uv.x, v.uv.y});
    quad.opaque = quad.opaque && (v.col >> IM_COL32_A_SHIFT & 255) == 255;
  }
  // An upright rectangle's first corner and its opposite one are its extremes.
  const ImDrawVert &first = vertex[a], &second = vertex[a + 1], &third = vertex[a + 2];
  const bool upright = first.pos.y == second.pos.y && second.pos.x == third.pos.x;
  quad.turned = !upright;
  return quad;
}

Frame read_frame() {
  Frame frame;
  const ImDrawData* data = ImGui::GetDrawData();
  if (data == nullptr) return frame;
  const ImFontAtlas& atlas = *ImGui::GetIO().Fonts;
  const Letters letters(atlas);
  const float em = ImGui::GetFontSize();
  std::size_t order = 0;
  for (int l = 0; l < data->CmdListsCount; ++l) {
    const ImDrawList& list = *data->CmdLists[l];
    const ImGuiWindow* window =
        list._OwnerName != nullptr ? ImGui::FindWindowByName(list._OwnerName) : nullptr;
    std::optional<Run> run;
    const auto end_run = [&] {
      if (run && !run->text.empty()) frame.runs.push_back(*run);
      run.reset();
    };
    for (const ImDrawCmd& command : list.CmdBuffer) {
      const Box clip{command.ClipRect.x, command.ClipRect.y, command.ClipRect.z, command.ClipRect.w};
      end_run();
      for (unsigned i = 0; i + 6 <= command.ElemCount;) {
        const auto quad = quad_of(list, command, i);
        if (!quad) {
          i += 3;
          continue;
        }
        i += 6;
        ++order;
        const bool of_fonts = command.TextureId == atlas.TexID;
        const ImFontGlyph* glyph =
            of_fonts && !(quad->of.width() == 0 && quad->of.height() == 0)
                ? letters.at((quad->of.left + quad->of.right) / 2, (quad->of.top + quad->of.bottom) / 2)
                : nullptr;
        if (glyph == nullptr) {
          end_run();
          const Box seen = quad->at.within(clip);
          if (quad->opaque && !quad->turned && !seen.empty()) frame.covers.push_back({seen, order, window});
          continue;
        }
        const Box shown = quad->at.within(clip);
        const bool same = run && run->turned == quad->turned &&
                          (quad->turned ? std::abs(quad->at.left - run->box.left) < em
                                        : quad->at.left >= run->box.right - 0.3F * em &&
                                              quad->at.left - run->box.right < 0.8F * em &&
                                              std::abs(quad->at.top - glyph->Y0 - run->line) < 1.5F);
        if (!same) {
          end_run();
          run.emplace();
          run->box = quad->at;
          run->shown = shown;
          run->window = window;
          run->order = order;
          run->turned = quad->turned;
          run->line = quad->at.top - glyph->Y0;
          run->color = quad->color;
        }
        char letter[5] = "";
        ImTextCharToUtf8(letter, glyph->Codepoint);
        run->text += letter;
        if (!shown.empty()) run->seen += letter;
        run->box = run->box.with(quad->at);
        if (!shown.empty()) run->shown = run->shown.empty() ? shown : run->shown.with(shown);
        // A letter is cut by its own box (part of its picture) or by the clip of its window.
        const auto less = [](float part, float whole) { return part < whole - 0.6F; };
        const float u = letters.texels_u(quad->of.width()), v = letters.texels_v(quad->of.height());
        run->cut_at_side = run->cut_at_side || less(u, letters.texels_u(glyph->U1 - glyph->U0)) ||
                           (quad->at.bottom > clip.top && quad->at.top < clip.bottom &&
                            (quad->at.left < clip.left - kSlack || quad->at.right > clip.right + kSlack));
        run->cut_above_or_below =
            run->cut_above_or_below || less(v, letters.texels_v(glyph->V1 - glyph->V0)) ||
            (!shown.empty() && (quad->at.top < clip.top - kSlack || quad->at.bottom > clip.bottom + kSlack));
      }
    }
    end_run();
  }
  return frame;
}

Area area_of(const Box& box) { return {box.left, box.top, box.width(), box.height()}; }

std::string name_of(const ImGuiWindow* window) { return window != nullptr ? window->Name : "?"; }

std::string where(const Box& box) { return fmt::format("({:.0f}, {:.0f})", box.left, box.top); }

/// Whether the window, or one that it lies in, can be scrolled up and down.
bool scrolls(const ImGuiWindow* window) {
  for (; window != nullptr; window = window->ParentWindow) {
    if (window->ScrollMax.y > 0 && (window->Flags & ImGuiWindowFlags_NoScrollbar) == 0) return true;
    if ((window->Flags & ImGuiWindowFlags_ChildWindow) == 0) return false;
  }
  return false;
}

}  // namespace

std::vector<DrawnText> drawn_texts() {
  std::vector<DrawnText> found;
  for (const Run& run : read_frame().runs)
    if (!run.seen.empty()) found.push_back({run.seen, name_of(run.window), area_of(run.shown)});
  return found;
}

std::vector<std::string> contrast_defects(const std::vector<Rgb>& pixels, int width, double least) {
  std::vector<std::string> defects;
  const int height = static_cast<int>(pixels.size()) / std::max(width, 1);
  for (const Run& run : read_frame().runs) {
    if (run.seen.empty() || (run.color >> IM_COL32_A_SHIFT & 255) < 255) continue;
    // Letters cover less of their line than what is behind them; dashes fill all of it.
    if (run.seen.find_first_not_of("_-. ") == std::string::npos) continue;
    std::map<ImU32, int> seen;
    for (int y = std::max(static_cast<int>(run.shown.top) - 1, 0);
         y < std::min(static_cast<int>(run.shown.bottom) + 2, height); ++y)
      for (int x = std::max(static_cast<int>(run.shown.left) - 1, 0);
           x < std::min(static_cast<int>(run.shown.right) + 2, width); ++x) {
        const Rgb& at = pixels[static_cast<std::size_t>(y) * width + x];
        ++seen[IM_COL32(at.r, at.g, at.b, 255)];
      }
    if (seen.empty()) continue;
    const ImU32 behind = std::max_element(seen.begin(), seen.end(), [](const auto& a, const auto& b) {
                           return a.second < b.second;
                         })->first;
    if (const double found = viewer::contrast(run.color, behind); found < least)
      defects.push_back(fmt::format("'{}' has a contrast of {:.1f} at {} in {}", run.seen, found,
                                    where(run.shown), name_of(run.window)));
  }
  return defects;
}

std::vector<std::string> layout_defects() {
  std::vector<std::string> defects;
  const Frame frame = read_frame();
  for (const Run& run : frame.runs) {
    if (run.cut_at_side)
      defects.push_back(
          fmt::format("'{}' is cut off at {} in {}", run.text, where(run.box), name_of(run.window)));
    else if (run.cut_above_or_below && !scrolls(run.window))
      defects.push_back(fmt::format("'{}' is cut off from above or below at {} in {}", run.text,
                                    where(run.box), name_of(run.window)));
  }
  for (std::size_t i = 0; i < frame.runs.size(); ++i) {
    const Run& run = frame.runs[i];
    if (run.seen.empty()) continue;
    for (std::size_t j = i + 1; j < frame.runs.size(); ++j) {
      const Run& other = frame.runs[j];
      if (other.seen.empty()) continue;
      const Box both = run.shown.within(other.shown);
      // The same text a pixel off is its halo.
      const bool halo = other.text == run.text && std::abs(other.box.left - run.box.left) < 3 &&
                        std::abs(other.box.top - run.box.top) < 3;
      if (!halo && both.width() > 2 && both.height() > 2)
        defects.push_back(fmt::format("'{}' lies over '{}' at {} in {}", other.seen, run.seen, where(both),
                                      name_of(other.window)));
    }
    for (const Cover& cover : frame.covers) {
      const Box both = run.shown.within(cover.box);
      if (cover.order > run.order && both.width() > 2 && both.height() > 2)
        defects.push_back(fmt::format("'{}' lies under a rectangle at {} in {}", run.seen, where(both),
                                      name_of(run.window)));
    }
  }
  ImGuiContext& context = *ImGui::GetCurrentContext();
  for (const ImGuiWindow* window : context.Windows) {
    if (!window->WasActive && !window->Active) continue;
    if (window->ScrollMax.x > kSlack && (window->Flags & ImGuiWindowFlags_HorizontalScrollbar) == 0)
      defects.push_back(
          fmt::format("{} is {:.0f} pixels too narrow for what it holds", window->Name, window->ScrollMax.x));
    if (window->ScrollMax.y > kSlack && (window->Flags & ImGuiWindowFlags_NoScrollbar) != 0)
      defects.push_back(fmt::format("{} is {:.0f} pixels too low for what it holds, and cannot be scrolled",
                                    window->Name, window->ScrollMax.y));
  }
  for (int i = 0; i < context.Tables.GetMapSize(); ++i) {
    const ImGuiTable* table = context.Tables.TryGetMapData(i);
    if (table == nullptr || table->LastFrameActive < context.FrameCount) continue;
    for (const ImGuiTableColumn& column : table->Columns) {
      if (!column.IsEnabled || !column.IsVisibleX) continue;
      const float used = std::max(column.ContentMaxXFrozen, column.ContentMaxXUnfrozen);
      if (used > column.WorkMaxX + kSlack)
        defects.push_back(fmt::format("column {} of a table in {} is {:.0f} pixels too narrow",
                                      table->Columns.index_from_ptr(&column), name_of(table->OuterWindow),
                                      used - column.WorkMaxX));
    }
  }
  return defects;
}

}  // namespace kvreplay::test
