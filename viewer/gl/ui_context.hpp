#pragma once

#include "viewer/gl/font_files.hpp"

#include <imgui.h>
#include <string>

namespace kvreplay::viewer {

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

  /// What there is to say about the fonts; empty where all were found.
  const std::string& remark() const { return remark_; }

 private:
  void build_fonts(float em);

  FontFiles files_;
  ImGuiContext* context_ = nullptr;
  float em_ = 0;
  std::string remark_;
};

/// Of the current context: for text, headings, and numbers or tokens.
ImFont* ui_font();
ImFont* bold_font();
ImFont* mono_font();

}  // namespace kvreplay::viewer
