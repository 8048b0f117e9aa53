#include "viewer/gl/headless_context.hpp"

#include "tests/support/catch.hpp"
#include "viewer/gl/frame_buffer.hpp"

#include <algorithm>

namespace kvreplay::viewer {
namespace {

// Mesa has both: its software renderer is an EGL device, too.
TEST_CASE("headless: OpenGL comes from Mesa without a surface, and from an EGL device", "[viewer][gl]") {
  for (const EglPlatform platform :
       {EglPlatform::first_that_works, EglPlatform::surfaceless, EglPlatform::device}) {
    CAPTURE(static_cast<int>(platform));
    const HeadlessContext context(platform);
    const FrameBuffer buffer(8, 4);
    buffer.bind();
    glClearColor(1, 0, 0, 1);
    glClear(GL_COLOR_BUFFER_BIT);
    const auto pixels = buffer.pixels(FirstRow::last);
    CHECK(pixels.size() == 32);
    CHECK(std::count(pixels.begin(), pixels.end(), Rgb{255, 0, 0}) == 32);
  }
}

TEST_CASE("headless: contexts of a device and without a surface stand side by side", "[viewer][gl]") {
  const HeadlessContext one(EglPlatform::surfaceless);
  const FrameBuffer buffer(4, 4);
  {
    const HeadlessContext other(EglPlatform::device);
    const FrameBuffer elsewhere(2, 2);
    CHECK(elsewhere.pixels(FirstRow::last).size() == 4);
  }
  one.make_current();
  buffer.bind();
  CHECK(buffer.pixels(FirstRow::last).size() == 16);
}

}  // namespace
}  // namespace kvreplay::viewer
