#include "viewer/gl/font_files.hpp"

#include <stb/stb_truetype.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <string_view>

namespace kvreplay::viewer {
namespace {

namespace fs = std::filesystem;

std::optional<FontFile> read_font(const fs::path& path) {
  std::error_code failed;
  if (!fs::is_regular_file(path, failed)) return {};
  std::ifstream in(path, std::ios::binary);
  FontFile font;
  font.path = path;
  font.bytes.assign(std::istreambuf_iterator<char>(in), {});
  // A font that the toolkit cannot read would end the program.
  constexpr std::size_t least = 1024;
  if (!in || font.bytes.size() < least) return {};
  const int offset = stbtt_GetFontOffsetForIndex(font.bytes.data(), 0);
  stbtt_fontinfo info{};
  if (offset < 0 || stbtt_InitFont(&info, font.bytes.data(), offset) == 0) return {};
  const float em = stbtt_ScaleForMappingEmToPixels(&info, 1.0F);
  int ascent = 0;
  stbtt_GetFontVMetrics(&info, &ascent, nullptr, nullptr);
  font.height_per_em = em / stbtt_ScaleForPixelHeight(&info, 1.0F);
  font.ascent_per_em = em * static_cast<float>(ascent);
  return font;
}

/// Where the wanted names lie: the first folder that has one wins.
std::map<std::string, fs::path> files_named(const std::vector<fs::path>& folders,
                                            const std::vector<std::string_view>& names) {
  std::map<std::string, fs::path> found;
  for (const fs::path& folder : folders) {
    std::error_code failed;
    fs::recursive_directory_iterator at(folder, fs::directory_options::skip_permission_denied, failed);
    for (; !failed && at != fs::recursive_directory_iterator(); at.increment(failed)) {
      const std::string name = at->path().filename().string();
      for (const std::string_view wanted : names)
        if (name == wanted) found.emplace(name, at->path());
    }
  }
  return found;
}

constexpr std::array<std::string_view, 3> kText = {"Inter-Regular.otf", "Inter-Regular.ttf",
                                                   "DejaVuSans.ttf"};
constexpr std::array<std::string_view, 3> kBold = {"Inter-SemiBold.otf", "Inter-SemiBold.ttf",
                                                   "DejaVuSans-Bold.ttf"};
constexpr std::array<std::string_view, 1> kNumbers = {"DejaVuSansMono.ttf"};
constexpr std::array<std::string_view, 1> kFallback = {"DejaVuSans.ttf"};

}  // namespace

std::vector<fs::path> font_folders() {
  std::vector<fs::path> folders;
  if (const char* chosen = std::getenv("KVREPLAY_FONT_DIR"); chosen != nullptr && *chosen != '\0')
    folders.emplace_back(chosen);
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    folders.push_back(fs::path(home) / ".local/share/fonts");
  for (const char* folder : {"/usr/local/share/fonts", "/usr/share/fonts"}) folders.emplace_back(folder);
  return folders;
}

FontFiles find_fonts(const std::vector<fs::path>& folders) {
  std::vector<std::string_view> names(kText.begin(), kText.end());
  names.insert(names.end(), kBold.begin(), kBold.end());
  names.insert(names.end(), kNumbers.begin(), kNumbers.end());
  const std::map<std::string, fs::path> found = files_named(folders, names);
  const auto first_of = [&](const auto& candidates) -> std::optional<FontFile> {
    for (const std::string_view name : candidates)
      if (const auto at = found.find(std::string(name)); at != found.end())
        if (auto font = read_font(at->second)) return font;
    return {};
  };
  return {first_of(kText), first_of(kBold), first_of(kNumbers), first_of(kFallback)};
}

}  // namespace kvreplay::viewer
