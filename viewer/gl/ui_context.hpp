#pragma once

#include <filesystem>
#include <imgui.h>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// A typeface as it lies in its file.
struct FontFile {
  std::filesystem::path path;
  std::vector<unsigned char> bytes;
  float height_per_em = 1;  ///< ascent - descent over the em
  float ascent_per_em = 1;
};

/// Fonts of the dashboard; each is empty if none was found.
struct FontFiles {
  std::optional<FontFile> text, bold, numbers;
  std::optional<FontFile> fallback;  ///< for signs that the others lack
};

/// KVREPLAY_FONT_DIR, ~/.local/share/fonts, /usr/local/share/fonts, /usr/share/fonts.
std::vector<std::filesystem::path> font_folders();

/// Inter (else DejaVu Sans) for text, its semibold for headings, DejaVu Sans Mono for numbers; searched for
/// by name in the folders and below, the earlier folders first. What cannot be read as a font is passed over.
FontFiles find_fonts(const std::vector<std::filesystem::path>& folders);

/// Dear ImGui's context and its OpenGL backend, without a settings file, with the dashboard's fonts. Needs a
/// current OpenGL context for its whole life.
class UiContext {
 public:
  explicit UiContext(FontFiles fonts = find_fonts(font_folders()));
  ~UiContext();
  UiContext(const UiContext&) = delete;
  UiContext& operator=(const UiContext&) = delete;

  void make_current() const;
  /// Letters of `points` points (the em) of `pixels_per_point` pixels; makes the fonts anew where that
  /// changes. Between frames only.
  void set_text(float points, float pixels_per_point);

  /// Begins and ends a frame.
  void new_frame() const;
  void end_frame() const;
  /// Draws the last frame into the bound framebuffer, which is cleared with the windows' background first.
  void paint(int width, int height) const;

 private:
  void build_fonts(float em);

  FontFiles files_;
  ImGuiContext* context_ = nullptr;
  float em_ = 0;
};

/// Fonts of the current context: for text, headings, and numbers or tokens.
ImFont* ui_font();
ImFont* bold_font();
ImFont* mono_font();

}  // namespace kvreplay::viewer
