#include "data/error.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"
#include "viewer/gl/headless_context.hpp"
#include "viewer/gl/ui_context.hpp"

#include <cstdlib>
#include <fstream>
#include <string>

namespace kvreplay::viewer {
namespace {

namespace fs = std::filesystem;

TEST_CASE("fonts: none found leaves the toolkit's own", "[viewer][gl]") {
  const test::TempDir empty;
  const HeadlessContext context;
  UiContext ui(find_fonts({empty.path(), empty / "missing"}));
  ui.set_text(13, 1);
  REQUIRE(ui_font() != nullptr);
  CHECK(ui_font()->FindGlyphNoFallback('g') != nullptr);
  CHECK(mono_font() != nullptr);
  CHECK(bold_font() != nullptr);
}

TEST_CASE("fonts: files that are none are passed over", "[viewer][gl]") {
  const test::TempDir folder;
  std::ofstream(folder / "Inter-Regular.otf") << std::string(5000, 'x');
  std::ofstream(folder / "DejaVuSans.ttf") << "OTTO";
  std::ofstream(folder / "DejaVuSansMono.ttf") << "";
  fs::create_directory(folder / "Inter-SemiBold.otf");
  const FontFiles fonts = find_fonts({folder.path()});
  CHECK_FALSE(fonts.text);
  CHECK_FALSE(fonts.bold);
  CHECK_FALSE(fonts.numbers);
  CHECK_FALSE(fonts.fallback);
}

TEST_CASE("fonts: the first folder wins, and folders below count", "[viewer][gl]") {
  const FontFiles system = find_fonts({"/usr/share/fonts"});
  if (!system.numbers) {
    WARN("skipped: the system has no DejaVu Sans Mono");
    return;
  }
  const test::TempDir folder;
  fs::create_directories(folder / "a/b");
  fs::copy_file(system.numbers->path, folder / "a/b/DejaVuSansMono.ttf");
  const FontFiles fonts = find_fonts({folder.path(), "/usr/share/fonts"});
  REQUIRE(fonts.numbers);
  CHECK(fonts.numbers->path == folder / "a/b/DejaVuSansMono.ttf");
  CHECK(fonts.numbers->height_per_em == Approx(1.164).margin(0.01));  // 1901 + 483 of 2048 units
  CHECK(fonts.numbers->ascent_per_em == Approx(0.928).margin(0.01));
}

TEST_CASE("fonts: the signs of labels and tokens have glyphs", "[viewer][gl]") {
  const FontFiles fonts = find_fonts(font_folders());
  if (!fonts.text || !fonts.fallback || !fonts.numbers) {
    WARN("skipped: the system has neither Inter nor DejaVu Sans");
    return;
  }
  const HeadlessContext context;
  UiContext ui(fonts);
  ui.set_text(13, 1);
  for (ImFont* font : {ui_font(), mono_font()})
    for (const unsigned sign :
         {0x41U, 0xE9U, 0x394U, 0x3BBU, 0x416U, 0x2014U, 0x2026U, 0x2190U, 0x2192U, 0x2211U, 0x221EU, 0x2264U,
          0x00B7U, 0x2423U, 0x23CEU, 0x2502U, 0x2588U, 0xFFFDU}) {
      INFO("U+" << std::hex << sign);
      CHECK(font->FindGlyphNoFallback(static_cast<ImWchar>(sign)) != nullptr);
    }
  for (const unsigned sign : {0x41U, 0x394U, 0x00D7U, 0x2192U, 0x2208U})
    CHECK(bold_font()->FindGlyphNoFallback(static_cast<ImWchar>(sign)) != nullptr);
  CHECK(mono_font()->GetCharAdvance('i') == mono_font()->GetCharAdvance('W'));
  CHECK(ui_font()->GetCharAdvance('i') < ui_font()->GetCharAdvance('W'));
  CHECK(bold_font() != ui_font());
}

}  // namespace
}  // namespace kvreplay::viewer
