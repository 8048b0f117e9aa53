#pragma once

#include "analysis/drawing/color_scale.hpp"
#include "viewer/gl/gl_object.hpp"

#include <filesystem>
#include <vector>

namespace kvreplay::viewer {

/// Row order of a picture in OpenGL's memory. `last`: the picture's top row is OpenGL's last row, as the
/// toolkit draws. `zero`: the top row is row 0, as ImGui::Image() expects.
enum class FirstRow { last, zero };

/// A framebuffer with one RGBA8 texture.
class FrameBuffer {
 public:
  /// Throws InputError for sizes that OpenGL cannot have (below 1, beyond GL_MAX_TEXTURE_SIZE).
  FrameBuffer(int width, int height);
  /// Contents are lost if the size changes.
  void resize(int width, int height);

  int width() const { return width_; }
  int height() const { return height_; }
  GLuint texture() const { return texture_.id(); }

  /// Drawing goes here from now on, to the whole of it.
  void bind() const;
  /// [height, width], the picture's rows top first.
  std::vector<Rgb> pixels(FirstRow order) const;

 private:
  void allocate(int width, int height);

  GlTexture texture_;
  GlFrameBuffer frame_buffer_;
  int width_ = 0, height_ = 0;
};

/// The lower left width x height pixels of the framebuffer that is bound for reading, rows as in pixels().
std::vector<Rgb> read_pixels(int width, int height, FirstRow order);

/// Writes pixels [height, width], top first, as a PNG, whole or not at all. Throws InputError.
void write_picture(const std::filesystem::path& path, const std::vector<Rgb>& pixels, int width, int height);

}  // namespace kvreplay::viewer
