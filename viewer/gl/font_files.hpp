#pragma once

#include <filesystem>
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

/// What the dashboard writes with; each empty where there is none.
struct FontFiles {
  std::optional<FontFile> text, bold, numbers;
  std::optional<FontFile> fallback;  ///< for signs that the others lack
};

/// KVREPLAY_FONT_DIR, ~/.local/share/fonts, /usr/local/share/fonts, /usr/share/fonts.
std::vector<std::filesystem::path> font_folders();

/// Inter (else DejaVu Sans) for text, its semibold for headings, DejaVu Sans Mono for numbers; searched for
/// by name in the folders and below, the earlier folders first. What cannot be read as a font is passed over.
FontFiles find_fonts(const std::vector<std::filesystem::path>& folders);

}  // namespace kvreplay::viewer
