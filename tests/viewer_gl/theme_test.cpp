#include "viewer/widgets/theme.hpp"

#include "tests/support/catch.hpp"

using namespace kvreplay::viewer;

TEST_CASE("contrast is WCAG's", "[theme]") {
  CHECK(contrast(IM_COL32(0, 0, 0, 255), IM_COL32(255, 255, 255, 255)) == Approx(21));
  CHECK(contrast(IM_COL32(255, 255, 255, 255), IM_COL32(0, 0, 0, 255)) == Approx(21));
  CHECK(contrast(IM_COL32(9, 9, 9, 255), IM_COL32(9, 9, 9, 255)) == 1);
  CHECK(contrast(IM_COL32(119, 119, 119, 255), IM_COL32(255, 255, 255, 255)) == Approx(4.48).margin(0.01));
}

TEST_CASE("a colour that cannot be read is made to", "[theme]") {
  for (const ImU32 behind :
       {IM_COL32(0, 0, 0, 255), IM_COL32(255, 255, 255, 255), IM_COL32(120, 130, 90, 255)})
    for (const ImU32 ink :
         {IM_COL32(0, 0, 0, 255), IM_COL32(200, 80, 20, 255), IM_COL32(255, 255, 255, 255)}) {
      const ImU32 found = readable(ink, behind);
      CHECK(contrast(found, behind) >= 4.5);
      CHECK((found == ink) == (contrast(ink, behind) >= 4.5));
    }
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
