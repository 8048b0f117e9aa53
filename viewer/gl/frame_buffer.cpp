#include "viewer/gl/frame_buffer.hpp"

#include "analysis/drawing/picture.hpp"
#include "data/atomic_file.hpp"
#include "data/error.hpp"
#include "viewer/gl/gl_object.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace kvreplay::viewer {

FrameBuffer::FrameBuffer(int width, int height) { allocate(width, height); }

void FrameBuffer::resize(int width, int height) {
  if (width != width_ || height != height_) allocate(width, height);
}

void FrameBuffer::allocate(int width, int height) {
  GLint most = 0;
  glGetIntegerv(GL_MAX_TEXTURE_SIZE, &most);
  if (width < 1 || height < 1 || width > most || height > most)
    throw InputError("a picture", fmt::format("1 to {} pixels a side", most),
                     fmt::format("{} x {}", width, height));
  glBindTexture(GL_TEXTURE_2D, texture_.id());
  glTexImage2D(GL_TEXTURE_2D, 0, GL_RGBA8, width, height, 0, GL_RGBA, GL_UNSIGNED_BYTE, nullptr);
  // Shown pixel for pixel, and without mipmaps: the default filter would make the texture incomplete.
  glTexParameteri(GL_TEXTURE_2D, GL_TEXTURE_MIN_FILTER, GL_NEAREST);
  glTexParameteri(GL_TEXTURE_2D, GL_TEXTURE_MAG_FILTER, GL_NEAREST);
  glTexParameteri(GL_TEXTURE_2D, GL_TEXTURE_WRAP_S, GL_CLAMP_TO_EDGE);
  glTexParameteri(GL_TEXTURE_2D, GL_TEXTURE_WRAP_T, GL_CLAMP_TO_EDGE);
  glBindFramebuffer(GL_FRAMEBUFFER, frame_buffer_.id());
  glFramebufferTexture2D(GL_FRAMEBUFFER, GL_COLOR_ATTACHMENT0, GL_TEXTURE_2D, texture_.id(), 0);
  check_gl("a framebuffer");
  const GLenum status = glCheckFramebufferStatus(GL_FRAMEBUFFER);
  if (status != GL_FRAMEBUFFER_COMPLETE)
    throw InputError(fmt::format("OpenGL: a framebuffer of {} x {}: status {:#x}", width, height, status));
  width_ = width;
  height_ = height;
}

void FrameBuffer::bind() const {
  glBindFramebuffer(GL_FRAMEBUFFER, frame_buffer_.id());
  glViewport(0, 0, width_, height_);
}

std::vector<Rgb> FrameBuffer::pixels(FirstRow order) const {
  glBindFramebuffer(GL_READ_FRAMEBUFFER, frame_buffer_.id());
  return read_pixels(width_, height_, order);
}

std::vector<Rgb> read_pixels(int width, int height, FirstRow order) {
  static_assert(sizeof(Rgb) == 3, "OpenGL writes pixels without gaps");
  const auto w = static_cast<std::size_t>(width), h = static_cast<std::size_t>(height);
  std::vector<Rgb> pixels(w * h);
  glBindBuffer(GL_PIXEL_PACK_BUFFER, 0);
  glPixelStorei(GL_PACK_ALIGNMENT, 1);
  glReadPixels(0, 0, width, height, GL_RGB, GL_UNSIGNED_BYTE, pixels.data());
  glPixelStorei(GL_PACK_ALIGNMENT, 4);
  check_gl("reading pixels back");
  if (order == FirstRow::last)
    for (std::size_t y = 0; y < h / 2; ++y)
      std::swap_ranges(pixels.begin() + static_cast<std::ptrdiff_t>(y * w),
                       pixels.begin() + static_cast<std::ptrdiff_t>((y + 1) * w),
                       pixels.begin() + static_cast<std::ptrdiff_t>((h - 1 - y) * w));
  return pixels;
}

void write_picture(const std::filesystem::path& path, const std::vector<Rgb>& pixels, int width, int height) {
  write_output(path, png_bytes(pixels, width, height));
}

}  // namespace kvreplay::viewer
