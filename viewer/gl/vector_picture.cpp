#include "viewer/gl/vector_picture.hpp"

#include "analysis/drawing/picture.hpp"
#include "analysis/report/text.hpp"
#include "viewer/gl/gl_object.hpp"

#include <fmt/format.h>
#include <stb/stb_truetype.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <imgui.h>
#include <imgui_internal.h>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace kvreplay::viewer {
namespace {

/// A coordinate in hundredths of a pixel, as short as it can be written.
std::string number(float value) { return fmt::format("{}", std::round(value * 100) / 100); }

std::string paint_of(ImU32 color) {
  const unsigned alpha = color >> IM_COL32_A_SHIFT & 0xFF;
  std::string paint = fmt::format("fill=\"#{:02x}{:02x}{:02x}\"", color >> IM_COL32_R_SHIFT & 0xFF,
                                  color >> IM_COL32_G_SHIFT & 0xFF, color >> IM_COL32_B_SHIFT & 0xFF);
  if (alpha < 255) paint += fmt::format(" fill-opacity=\"{:.3g}\"", alpha / 255.0);
  return paint;
}

bool is_opaque(ImU32 color) { return (color >> IM_COL32_A_SHIFT & 0xFF) == 255; }

ImRect bounds_of(std::span<const ImVec2> points) {
  ImRect box(points.front(), points.front());
  for (const ImVec2& point : points) box.Add(point);
  return box;
}

// Letters.

/// The letters of the fonts' texture, by where they lie in it.
class Letters {
 public:
  explicit Letters(const ImFontAtlas& atlas) : atlas_(atlas) {
    for (const ImFont* font : atlas.Fonts)
      for (const ImFontGlyph& glyph : font->Glyphs) places_[row_of(glyph.V0)].push_back({font, &glyph});
  }

  struct Letter {
    const ImFont* font;
    const ImFontGlyph* glyph;
  };
  /// What lies at (u, v); null fields where nothing does.
  Letter at(float u, float v) const {
    for (auto row = places_.begin(); row != places_.end() && row->first <= row_of(v); ++row)
      for (const Letter& letter : row->second)
        if (u >= letter.glyph->U0 && u <= letter.glyph->U1 && v >= letter.glyph->V0 && v <= letter.glyph->V1)
          return letter;
    return {nullptr, nullptr};
  }

  /// The name of a letter's outline among definitions(), relative to its pen on the base line; empty where
  /// it has none (a blank, or a font that is a bitmap).
  std::string name_of(const Letter& letter) {
    const auto [at, anew] = names_.try_emplace(letter.glyph, "");
    if (!anew) return at->second;
    const std::string outline = outline_of(letter);
    if (outline.empty()) return "";
    at->second = fmt::format("g{}", names_.size());
    definitions_ += fmt::format("<path id=\"{}\" d=\"{}\"/>\n", at->second, outline);
    return at->second;
  }
  const std::string& definitions() const { return definitions_; }

  /// From the top of a letter's line to its base line, as the toolkit has placed it.
  static float base_line(const Letter& letter) {
    const ImFontConfig* const own = config_of(letter);
    return std::round(letter.font->Ascent) + (own != nullptr ? own->GlyphOffset.y : 0);
  }

 private:
  int row_of(float v) const { return static_cast<int>(v * static_cast<float>(atlas_.TexHeight)); }

  /// The first of a font's files that has the letter: the toolkit takes that one.
  static const ImFontConfig* config_of(const Letter& letter) {
    for (short i = 0; i < letter.font->ConfigDataCount; ++i) {
      const ImFontConfig& config = letter.font->ConfigData[i];
      stbtt_fontinfo info{};
      if (read(config, info) && stbtt_FindGlyphIndex(&info, static_cast<int>(letter.glyph->Codepoint)) != 0)
        return &config;
    }
    return nullptr;
  }

  static bool read(const ImFontConfig& config, stbtt_fontinfo& info) {
    const auto* const bytes = static_cast<const unsigned char*>(config.FontData);
    return bytes != nullptr &&
           stbtt_InitFont(&info, bytes, stbtt_GetFontOffsetForIndex(bytes, config.FontNo)) != 0;
  }

  static std::string outline_of(const Letter& letter) {
    const ImFontConfig* const config = config_of(letter);
    stbtt_fontinfo info{};
    if (config == nullptr || !read(*config, info)) return "";
    stbtt_vertex* first = nullptr;
    const int count = stbtt_GetCodepointShape(&info, static_cast<int>(letter.glyph->Codepoint), &first);
    const auto freed = [&info](stbtt_vertex* shape) { stbtt_FreeShape(&info, shape); };
    const std::unique_ptr<stbtt_vertex, decltype(freed)> shape(first, freed);
    const float scale = stbtt_ScaleForPixelHeight(&info, config->SizePixels);
    const auto point = [scale](int x, int y) {
      return number(static_cast<float>(x) * scale) + " " + number(static_cast<float>(-y) * scale);
    };
    std::string outline;
    for (const stbtt_vertex& to : std::span(first, static_cast<std::size_t>(std::max(count, 0)))) {
      if (to.type == STBTT_vmove) outline += (outline.empty() ? "M" : "ZM") + point(to.x, to.y);
      if (to.type == STBTT_vline) outline += "L" + point(to.x, to.y);
      if (to.type == STBTT_vcurve) outline += "Q" + point(to.cx, to.cy) + " " + point(to.x, to.y);
      if (to.type == STBTT_vcubic)
        outline += "C" + point(to.cx, to.cy) + " " + point(to.cx1, to.cy1) + " " + point(to.x, to.y);
    }
    return outline.empty() ? "" : outline + "Z";
  }

  const ImFontAtlas& atlas_;
  std::map<int, std::vector<Letter>> places_;  // by the row of texels in which a letter begins
  std::map<const ImFontGlyph*, std::string> names_;
  std::string definitions_;
};

// Textures.

/// All of a texture as a PNG, its first row on top.
std::vector<std::byte> png_of_texture(GLuint texture, ImU32 ground) {
  GLint before = 0, width = 0, height = 0;
  glGetIntegerv(GL_TEXTURE_BINDING_2D, &before);
  glBindTexture(GL_TEXTURE_2D, texture);
  glGetTexLevelParameteriv(GL_TEXTURE_2D, 0, GL_TEXTURE_WIDTH, &width);
  glGetTexLevelParameteriv(GL_TEXTURE_2D, 0, GL_TEXTURE_HEIGHT, &height);
  std::vector<std::uint8_t> texels(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 4);
  glPixelStorei(GL_PACK_ALIGNMENT, 1);
  glGetTexImage(GL_TEXTURE_2D, 0, GL_RGBA, GL_UNSIGNED_BYTE, texels.data());
  glBindTexture(GL_TEXTURE_2D, static_cast<GLuint>(before));
  check_gl("reading a heat map");
  const auto over = [](std::uint8_t color, std::uint8_t alpha, ImU32 below) {
    return static_cast<std::uint8_t>((color * alpha + (below & 0xFF) * (255U - alpha) + 127) / 255);
  };
  std::vector<Rgb> pixels(texels.size() / 4);
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    const std::uint8_t* const t = texels.data() + 4 * i;
    pixels[i] = {over(t[0], t[3], ground >> IM_COL32_R_SHIFT), over(t[1], t[3], ground >> IM_COL32_G_SHIFT),
                 over(t[2], t[3], ground >> IM_COL32_B_SHIFT)};
  }
  return png_bytes(pixels, width, height);
}

// The frame.

class SvgFrame {
 public:
  explicit SvgFrame(const ImFontAtlas& atlas)
      : atlas_(atlas), letters_(atlas), ground_(ImGui::GetColorU32(ImGuiCol_WindowBg)) {}

  void add(const ImDrawList& list) {
    for (const ImDrawCmd& command : list.CmdBuffer) {
      if (command.UserCallback != nullptr) continue;
      clip_ = ImRect(command.ClipRect);
      if (clip_.GetWidth() <= 0 || clip_.GetHeight() <= 0) continue;
      const std::span indices(list.IdxBuffer.Data + command.IdxOffset, command.ElemCount);
      const std::span vertices(list.VtxBuffer.Data + command.VtxOffset,
                               static_cast<std::size_t>(list.VtxBuffer.Size) - command.VtxOffset);
      for (std::size_t i = 0; i + 2 < indices.size();) i = add_fan(command, indices, vertices, i);
    }
  }

  std::string text(ImVec2 size, float scale) {
    end_run();
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {2} {3}\">\n"
        "<defs>\n{4}{5}</defs>\n<rect width=\"{2}\" height=\"{3}\" {6}/>\n{7}</svg>\n",
        number(size.x / scale), number(size.y / scale), number(size.x), number(size.y), clips_,
        letters_.definitions(), paint_of(ground_), body_);
  }

 private:
  /// Triangles that share their first corner, each of which goes on where the last one ended: the polygon
  /// that the toolkit filled. The index behind them.
  std::size_t add_fan(const ImDrawCmd& command, std::span<const ImDrawIdx> indices,
                      std::span<const ImDrawVert> vertices, std::size_t i) {
    std::vector<ImDrawVert> corners{vertices[indices[i]], vertices[indices[i + 1]], vertices[indices[i + 2]]};
    std::size_t end = i + 3;
    for (; end + 2 < indices.size() && indices[end] == indices[i] && indices[end + 1] == indices[end - 1];
         end += 3)
      corners.push_back(vertices[indices[end + 2]]);
    std::vector<ImVec2> points;
    std::transform(corners.begin(), corners.end(), std::back_inserter(points),
                   [](const ImDrawVert& corner) { return corner.pos; });
    const ImRect box = bounds_of(points);
    if (!clip_.Overlaps(box) || (corners.front().col >> IM_COL32_A_SHIFT & 0xFF) == 0) return end;
    if (command.GetTexID() != atlas_.TexID)
      add_texture(command.GetTexID(), box);
    else if (is_letter(corners))
      add_letter(corners, box);
    else
      add_polygon(std::move(points), box, corners.front().col);
    return end;
  }

  /// Shapes take the texel of the fonts' texture that is white.
  bool is_letter(std::span<const ImDrawVert> corners) const {
    return std::any_of(corners.begin(), corners.end(), [&](const ImDrawVert& corner) {
      return corner.uv.x != atlas_.TexUvWhitePixel.x || corner.uv.y != atlas_.TexUvWhitePixel.y;
    });
  }

  void add_letter(std::span<const ImDrawVert> corners, const ImRect& box) {
    const auto& [low, high] = std::pair(corners.front(), corners[2]);
    const Letters::Letter letter = letters_.at((low.uv.x + high.uv.x) / 2, (low.uv.y + high.uv.y) / 2);
    if (letter.glyph == nullptr) return;
    const std::string name = letters_.name_of(letter);
    if (name.empty()) return;
    // Text beside an edge may be cut: what is left of the letter says where all of it is.
    const float times = (high.pos.x - low.pos.x) / std::max(1e-6F, high.uv.x - low.uv.x) *
                        (letter.glyph->U1 - letter.glyph->U0) / (letter.glyph->X1 - letter.glyph->X0);
    const float left =
        low.pos.x - (low.uv.x - letter.glyph->U0) * static_cast<float>(atlas_.TexWidth) * times;
    const float top =
        low.pos.y - (low.uv.y - letter.glyph->V0) * static_cast<float>(atlas_.TexHeight) * times;
    const float x = left - letter.glyph->X0 * times;
    const float y = top + (Letters::base_line(letter) - letter.glyph->Y0) * times;
    end_run();
    begin_clip(box);
    const std::string size =
        std::abs(times - 1) < 0.01F ? std::string() : fmt::format(" scale({})", number(times));
    body_ += size.empty() ? fmt::format("<use href=\"#{}\" x=\"{}\" y=\"{}\" {}/>\n", name, number(x),
                                        number(y), paint_of(low.col))
                          : fmt::format("<use href=\"#{}\" transform=\"translate({} {}){}\" {}/>\n", name,
                                        number(x), number(y), size, paint_of(low.col));
    end_clip();
  }

  void add_texture(ImTextureID id, const ImRect& box) {
    end_run();
    begin_clip(box);
    const auto bytes = png_of_texture(static_cast<GLuint>(reinterpret_cast<std::intptr_t>(id)), ground_);
    body_ += fmt::format(
        "<image x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" preserveAspectRatio=\"none\" "
        "style=\"image-rendering:pixelated\" href=\"data:image/png;base64,{}\"/>\n",
        number(box.Min.x), number(box.Min.y), number(box.GetWidth()), number(box.GetHeight()),
        report::base64({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}));
    end_clip();
  }

  void add_polygon(std::vector<ImVec2> points, const ImRect& box, ImU32 color) {
    // All turn the same way: what overlaps in a path adds up.
    float area = 0;
    for (std::size_t i = 0; i < points.size(); ++i) {
      const ImVec2 a = points[i], b = points[(i + 1) % points.size()];
      area += a.x * b.y - a.y * b.x;
    }
    if (area == 0) return;
    if (area < 0) std::reverse(points.begin(), points.end());
    const bool level = std::all_of(points.begin(), points.end(), [&](const ImVec2& p) {
      return (p.x == box.Min.x || p.x == box.Max.x) && (p.y == box.Min.y || p.y == box.Max.y);
    });
    const bool cut = !clip_.Contains(box);
    const Run now{color, level, cut ? std::optional(clip_) : std::nullopt};
    // Shapes that are seen through show where they overlap.
    if (!run_ || !(*run_ == now) || !is_opaque(color)) end_run();
    run_ = now;
    for (std::size_t i = 0; i < points.size(); ++i)
      shapes_ += (i == 0 ? "M" : "L") + number(points[i].x) + " " + number(points[i].y);
    shapes_ += "Z";
  }

  void end_run() {
    if (run_ && !shapes_.empty()) {
      if (run_->clip) open_clip(*run_->clip);
      // Boxes side by side (a colour bar) must not let what is below shine through between them.
      body_ += fmt::format("<path {}{} d=\"{}\"/>\n", paint_of(run_->color),
                           run_->level ? " shape-rendering=\"crispEdges\"" : "", shapes_);
      if (run_->clip) body_ += "</g>\n";
    }
    run_.reset();
    shapes_.clear();
  }

  void begin_clip(const ImRect& box) {
    cut_ = !clip_.Contains(box);
    if (cut_) open_clip(clip_);
  }
  void end_clip() {
    if (cut_) body_ += "</g>\n";
  }
  void open_clip(const ImRect& clip) {
    const std::string shape =
        fmt::format("x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"", number(clip.Min.x), number(clip.Min.y),
                    number(clip.GetWidth()), number(clip.GetHeight()));
    const auto [at, anew] = clip_names_.try_emplace(shape, fmt::format("c{}", clip_names_.size()));
    if (anew) clips_ += fmt::format("<clipPath id=\"{}\"><rect {}/></clipPath>\n", at->second, shape);
    body_ += fmt::format("<g clip-path=\"url(#{})\">\n", at->second);
  }

  /// Shapes of one colour that follow each other.
  struct Run {
    ImU32 color;
    bool level;  // boxes only
    std::optional<ImRect> clip;
    bool operator==(const Run& other) const {
      const auto same = [](const ImRect& a, const ImRect& b) {
        return a.Min.x == b.Min.x && a.Min.y == b.Min.y && a.Max.x == b.Max.x && a.Max.y == b.Max.y;
      };
      return color == other.color && level == other.level && clip.has_value() == other.clip.has_value() &&
             (!clip || same(*clip, *other.clip));
    }
  };

  const ImFontAtlas& atlas_;
  Letters letters_;
  ImU32 ground_;
  ImRect clip_;
  bool cut_ = false;
  std::optional<Run> run_;
  std::string shapes_, body_, clips_;
  std::map<std::string, std::string> clip_names_;
};

}  // namespace

std::string svg_of_frame(float scale) {
  const ImDrawData& frame = *ImGui::GetDrawData();
  SvgFrame svg(*ImGui::GetIO().Fonts);
  for (int i = 0; i < frame.CmdListsCount; ++i) svg.add(*frame.CmdLists[i]);
  return svg.text(frame.DisplaySize, scale);
}

}  // namespace kvreplay::viewer
