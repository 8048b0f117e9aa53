#include "viewer/widgets/theme.hpp"

#include "tests/support/catch.hpp"

using namespace kvreplay::viewer;

TEST_CASE("contrast is WCAG's", "[theme]") {
  CHECK(contrast(IM_COL32(0, 0, 0, 255), IM_COL32(255, 255, 255, 255)) == Approx(21));
  CHECK(contrast(IM_COL32(255, 255, 255, 255), IM_COL32(0, 0, 0, 255)) == Approx(21));
  CHECK(contrast(IM_COL32(9, 9, 9, 255), IM_COL32(9, 9, 9, 255)) == 1);
  CHECK(contrast(IM_COL32(119, 119, 119, 255), IM_COL32(255, 255, 255, 255)) == Approx(4.48).margin(0.01));
}

TEST_CASE("tabs and the numbers of sliders are readable in both themes", "[theme]") {
  for (const bool dark : {true, false}) {
    const Theme t = theme_of(dark);
    INFO((dark ? "dark" : "light"));
    for (const bool hovered : {true, false})
      for (const bool in_front : {true, false})
        CHECK(contrast(tab_ink(t, in_front, hovered), t.panel) >= 4.5);
    CHECK(contrast(t.text, t.knob) >= 4.5);
    CHECK(contrast(t.text, t.raised) >= 4.5);
    CHECK(contrast(t.knob, t.raised) >= 1.5);  // and the knob is seen
  }
}
