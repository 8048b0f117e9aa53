#include "viewer/gl/ui_context.hpp"

#include "data/error.hpp"
#include "viewer/gl/gl_object.hpp"

#include <stb/stb_truetype.h>

#include <GL/gl.h>
#include <GL/glext.h>
#include <algorithm>
#include <array>
#include <backends/imgui_impl_opengl3.h>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

// After the toolkit's header, which would take GL's types from elsewhere.

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

// First and last code points, 0 at the end. The toolkit keeps the pointers until the atlas is built.
constexpr ImWchar kTextRange[] = {
    0x0020, 0x024F,  // Latin
    0x0370, 0x052F,  // Greek, Cyrillic
    0x1E00, 0x1EFF,  // more Latin
    0x2000, 0x209F,  // punctuation, superscripts and subscripts
    0x20A0, 0x20BF,  // currencies
    0x2100, 0x214F,  // letter-like signs
    0x2190, 0x22FF,  // arrows, mathematics
    0x2300, 0x2327,  // technical
    0x23CE, 0x23CE,  // return
    0x2400, 0x2426,  // pictures of control characters (DejaVu has those of spaces only)
    0x2500, 0x25FF,  // boxes, blocks, shapes
    0x2605, 0x2606,  // stars
    0x2660, 0x2667,  // suits
    0x266A, 0x266B,  // notes
    0x2713, 0x2718,  // ticks and crosses
    0x27E8, 0x27E9,  // angle brackets
    0xFFFD, 0xFFFD,  // replacement
    0,
};
constexpr ImWchar kHeadingRange[] = {
    0x0020, 0x017F, 0x0370, 0x03FF, 0x2010, 0x2027, 0x2070, 0x209F, 0x2190, 0x2195, 0x2200, 0x22FF, 0,
};

/// `lowered`: pixels, so that fonts side by side share a base line.
void add_font(const FontFile& file, float em, const ImWchar* range, bool merge, float lowered) {
  ImFontConfig config;
  config.MergeMode = merge;
  config.FontDataOwnedByAtlas = false;
  // Large letters need no finer raster, and the atlas stays small.
  config.OversampleH = em < 20 ? 2 : 1;
  config.OversampleV = 1;
  config.PixelSnapH = em >= 20;
  config.GlyphRanges = range;
  config.GlyphOffset.y = lowered;
  // The atlas only reads what it does not own.
  auto* bytes = const_cast<unsigned char*>(file.bytes.data());
  const float height = std::max(1.0F, std::round(em * file.height_per_em));
  ImGui::GetIO().Fonts->AddFontFromMemoryTTF(bytes, static_cast<int>(file.bytes.size()), height, &config);
}

void add_own_font(float em) {
  ImFontConfig config;
  config.SizePixels = std::max(13.0F, 13.0F * std::floor(em / 12));  // a bitmap: whole multiples stay sharp
  ImGui::GetIO().Fonts->AddFontDefault(&config);
}

enum FontSlot : int { text, bold, numbers };

ImFont* font_at(FontSlot place) {
  const auto& fonts = ImGui::GetIO().Fonts->Fonts;
  return fonts[std::min(static_cast<int>(place), fonts.Size - 1)];
}

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

UiContext::UiContext(FontFiles fonts) : files_(std::move(fonts)) {
  IMGUI_CHECKVERSION();
  ImGuiContext* before = ImGui::GetCurrentContext();
  context_ = ImGui::CreateContext();
  ImGui::SetCurrentContext(context_);
  ImGuiIO& io = ImGui::GetIO();
  io.IniFilename = nullptr;
  io.LogFilename = nullptr;
  io.Fonts->Flags |= ImFontAtlasFlags_NoMouseCursors;
  if (!ImGui_ImplOpenGL3_Init("#version 330 core")) {
    ImGui::DestroyContext(context_);
    ImGui::SetCurrentContext(before);
    throw InputError("the dashboard's graphics", "OpenGL 3.3", "a context that Dear ImGui cannot use");
  }
}

UiContext::~UiContext() {
  ImGuiContext* before = ImGui::GetCurrentContext();
  ImGui::SetCurrentContext(context_);
  ImGui_ImplOpenGL3_Shutdown();
  ImGui::DestroyContext(context_);
  ImGui::SetCurrentContext(before == context_ ? nullptr : before);
}

void UiContext::make_current() const { ImGui::SetCurrentContext(context_); }

void UiContext::set_text(float points, float pixels_per_point) {
  const float wanted = points * pixels_per_point;
  const float em = std::isfinite(wanted) ? std::clamp(std::round(wanted), 6.0F, 96.0F) : 13.0F;
  if (em == em_) return;
  make_current();
  build_fonts(em);
  em_ = em;
}

void UiContext::build_fonts(float em) {
  ImFontAtlas& atlas = *ImGui::GetIO().Fonts;
  atlas.Clear();
  atlas.TexDesiredWidth = em < 40 ? 2048 : 4096;
  const auto add = [&](const std::optional<FontFile>& file, const ImWchar* range) {
    if (!file) return;
    const float lowered = std::round(em * (files_.text->ascent_per_em - file->ascent_per_em));
    add_font(*file, em, range, false, lowered);
    if (files_.fallback && files_.fallback->path != file->path)
      add_font(*files_.fallback, em, range, true, lowered);
  };
  if (files_.text) {
    add(files_.text, kTextRange);
    add(files_.bold ? files_.bold : files_.text, kHeadingRange);
    add(files_.numbers ? files_.numbers : files_.text, kTextRange);
  } else {
    add_own_font(em);
  }
  atlas.Build();
  ImGui_ImplOpenGL3_DestroyFontsTexture();
  ImGui_ImplOpenGL3_CreateFontsTexture();
  atlas.ClearTexData();  // the picture is on the other side now
  check_gl("the fonts");
}

void UiContext::new_frame() const {
  ImGui_ImplOpenGL3_NewFrame();
  ImGui::NewFrame();
}

void UiContext::end_frame() const { ImGui::Render(); }

void UiContext::paint(int width, int height) const {
  const ImVec4& ground = ImGui::GetStyle().Colors[ImGuiCol_WindowBg];
  glViewport(0, 0, width, height);
  glDisable(GL_SCISSOR_TEST);
  glClearColor(ground.x, ground.y, ground.z, 1.0F);
  glClear(GL_COLOR_BUFFER_BIT);
  ImGui_ImplOpenGL3_RenderDrawData(ImGui::GetDrawData());
  check_gl("drawing a frame");
}

ImFont* ui_font() { return font_at(text); }
ImFont* bold_font() { return font_at(bold); }
ImFont* mono_font() { return font_at(numbers); }

}  // namespace kvreplay::viewer
