#include "analysis/drawing/color_scale.hpp"
#include "analysis/report/assets.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/analysis/xml_check.hpp"
#include "tests/support/catch.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <regex>
#include <utility>

// A report for its reader: its colours, its words, and its tooltips.

using namespace kvreplay;
using namespace kvreplay::test;
namespace fs = std::filesystem;

namespace {

/// A report of everything, made once.
const fs::path& results() {
  static const TempDir temp;
  static const fs::path folder = [] {
    make_small_dump(temp / "dump");
    succeed({"analyze", temp / "dump", "--out", temp / "r", "--quiet"});
    return fs::path(temp / "r");
  }();
  return folder;
}
const std::string& page() {
  static const std::string html = report_of(results());
  return html;
}

using Color = std::array<double, 3>;

Color color_of(const std::string& hex) {
  REQUIRE(hex.size() == 7);
  const auto part = [&](std::size_t at) { return std::stoi(hex.substr(at, 2), nullptr, 16) / 255.0; };
  return {part(1), part(3), part(5)};
}

/// WCAG 2.
double luminance(const Color& color) {
  const auto linear = [](double c) { return c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4); };
  return 0.2126 * linear(color[0]) + 0.7152 * linear(color[1]) + 0.0722 * linear(color[2]);
}
double contrast(const std::string& a, const std::string& b) {
  const double x = luminance(color_of(a)) + 0.05, y = luminance(color_of(b)) + 0.05;
  return std::max(x, y) / std::min(x, y);
}

/// The blocks of a style sheet under a media query, or under none; braces matched.
std::string under(const std::string& css, const std::string& media) {
  std::string inside, outside;
  for (std::size_t at = 0; at < css.size();) {
    const std::size_t begin = css.find("@media", at);
    outside += css.substr(at, begin - at);
    if (begin == std::string::npos) break;
    const std::size_t open = css.find('{', begin);
    std::size_t end = open + 1;
    for (int depth = 1; depth > 0; ++end) depth += css[end] == '{' ? 1 : css[end] == '}' ? -1 : 0;
    if (contains(css.substr(begin, open - begin), media)) inside += css.substr(open + 1, end - open - 2);
    at = end;
  }
  return media.empty() ? outside : inside;
}

/// The colours that a style sheet names, as "--soft" and as ".holds-yes".
std::map<std::string, std::string> colors_in(const std::string& css) {
  std::map<std::string, std::string> colors;
  const std::regex variable("(--[a-z0-9]+): (#[0-9a-f]{6})"),
      rule("(\\.[a-z-]+) \\{ (?:color|fill): (#[0-9a-f]{6})");
  for (const std::regex& pattern : {variable, rule})
    for (std::sregex_iterator at(css.begin(), css.end(), pattern), end; at != end; ++at)
      colors[(*at)[1]] = (*at)[2];
  return colors;
}

}  // namespace

TEST_CASE("text has the contrast that WCAG AA asks for, in light, dark and print", "[report]") {
  const std::string css = std::string(report::figure_css()) + std::string(report::report_css());
  const std::map<std::string, std::string> light = colors_in(under(css, ""));
  REQUIRE(light.contains("--quiet"));
  for (const char* media : {"", "dark", "print"}) {
    std::map<std::string, std::string> colors = light;
    for (const auto& [name, color] : colors_in(under(css, media))) colors[name] = color;
    for (const char* text :
         {"--text", "--soft", "--accent", "--ink", "--quiet", ".holds-yes", ".holds-no", ".holds-part"})
      for (const char* ground : {"--page", "--card", "--control"}) {
        if (std::string(media) == "print" && std::string(ground) == "--control")
          continue;  // lists have none there
        INFO(media << " " << text << " on " << ground);
        CHECK(contrast(colors.at(text), colors.at(ground)) >= 4.5);
      }
  }
  // Tokens of the prompt, and those that most heads evict, on the tints.
  const std::string prompt(report::prompt_css());
  const std::map<std::string, std::string> tints = colors_in(under(prompt, ""));
  for (const char* media : {"", "dark", "print"}) {
    std::map<std::string, std::string> colors = light;
    for (const auto& [name, color] : colors_in(under(css, media))) colors[name] = color;
    for (const auto& [name, color] : tints) colors[name] = color;
    for (const auto& [name, color] : colors_in(under(prompt, media))) colors[name] = color;
    for (int tint = 0; tint < 8; ++tint) {
      const std::string ground = colors.at(tint == 0 ? "--card" : fmt::format("--t{}", tint));
      INFO(media << " tint " << tint);
      CHECK(contrast(colors.at("--text"), ground) >= 4.5);
      CHECK(contrast(colors.at(fmt::format("--f{}", tint)), ground) >= 4.5);
    }
  }
  for (const bool diverging : {false, true})
    for (int i = 0; i <= 1000; ++i) {
      const Rgb color = ColorScale{.diverging = diverging}.color(i / 1000.0);
      INFO(hex(color));
      REQUIRE(contrast(hex(color), light.at(is_dark(color) ? ".on-dark" : ".on-light")) >= 4.5);
    }
}

TEST_CASE("on the first screen what is worse is darker, and legends say so", "[report]") {
  const std::size_t overview = page().find("<section id=\"overview\">"),
                    end = page().find("<section id=\"heads\">");
  const std::string section = page().substr(overview, end - overview);
  const std::vector<std::string> pictures = pictures_in(section);
  REQUIRE(pictures.size() > 4);
  // The colours fall evenly in Oklab; where their hue turns luminance need not, by a little.
  constexpr double kTurns = 1e-3;
  std::size_t compared = 0;
  for (const std::string& picture : pictures) {
    INFO(picture.substr(0, 300));
    CHECK(contains(picture, "darker is worse</text>"));
    const bool errors = contains(picture, "||o&#39; - o||^2");
    std::vector<std::pair<double, double>> cells;  // value and lightness
    const std::regex cell("fill=\"(#[0-9a-f]{6})\" data-cell=\"[0-9]+\" data-tip=\"[^\"]*: ([^:\"]*)\"");
    for (std::sregex_iterator at(picture.begin(), picture.end(), cell), last; at != last; ++at)
      cells.emplace_back(std::stod((*at)[2]), luminance(color_of((*at)[1])));
    REQUIRE_FALSE(cells.empty());
    std::sort(cells.begin(), cells.end());
    for (std::size_t i = 1; i < cells.size(); ++i) {
      if (errors)
        REQUIRE(cells[i].second <= cells[i - 1].second + kTurns);
      else
        REQUIRE(cells[i].second >= cells[i - 1].second - kTurns);
      ++compared;
    }
  }
  CHECK(compared > 50);
}

TEST_CASE("pictures have a name to be read out, and no tooltip but the page's", "[report]") {
  for (const std::string& picture : pictures_in(page())) {
    INFO(picture.substr(0, 200));
    CHECK_FALSE(contains(picture, "<title"));
    CHECK(std::regex_search(picture.substr(0, picture.find('>')),
                            std::regex("role=\"img\".* aria-label=\"[^\"]+\"")));
  }
  for (const auto& entry : fs::directory_iterator(results() / "report" / "figures"))
    if (entry.path().extension() == ".svg") CHECK_FALSE(contains(file_text(entry.path()), "<title"));
  CHECK(std::regex_search(page(), std::regex("data-cell=\"0\" data-tip=\"[^\"]*: [^\"]+\"")));
}

TEST_CASE("points of the scatter plot are tokens with their text, scores across and costs upwards",
          "[report]") {
  const std::string& html = page();
  const std::size_t figure = html.find("<figure id=\"scatter\""), script = html.find("<script", figure);
  const std::size_t begin = html.find('>', script) + 1;
  const auto data = nlohmann::json::parse(html.substr(begin, html.find("</script>", begin) - begin));
  const auto tokens = nlohmann::json::parse(file_text(results().parent_path() / "dump" / "tokens.json"));
  REQUIRE(data["texts"].size() == 61);  // a small prompt is drawn whole
  for (const auto& [token, text] : data["texts"].items())
    CHECK(text == "'" + tokens["text"][std::stoul(token)].get<std::string>() + "'");
  const std::string csv = file_text(results() / "report" / "figures" / "scatter.csv");
  CHECK(csv.starts_with("token,attn,exact_remove\n"));
  // The same, were the dump somewhere else by now.
  fs::rename(results().parent_path() / "dump", results().parent_path() / "elsewhere");
  const std::string without = report_of(results());
  CHECK(contains(without, "\"texts\":{}"));
  CHECK(csv == file_text(results() / "report" / "figures" / "scatter.csv"));
  fs::rename(results().parent_path() / "elsewhere", results().parent_path() / "dump");
}

TEST_CASE("what was run is told in words, not in letters", "[report]") {
  CHECK(contains(page(), ">positions with a query</th><td>70</td>"));
  CHECK(contains(page(), ">channels of a value</th><td>8</td>"));
  for (const char* letters : {"n_q", "n_kv", "d", "d_v", "d_model", "T", "T_q", "l"})
    CHECK_FALSE(contains(page(), fmt::format(">{}</th>", letters)));
}
